unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
       $9::bigint[], $10::integer[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], $15::text[],
       $16::text[], $17::text[], $18::text[], $19::bigint[], $20::integer[], $21::text[], $22::text[])
  AS u (moved, version_before, attempt_before, to_state, code, message, cause, to_version, to_attempt, to_restarts,
        to_step, updated, waits_until, started, ended, deadline, failed, uri, items, lost_in_a_row,
        avoided, bound_to)
