to_state, code, message, cause, to_version, to_attempt, to_restarts, to_step, from_micros(updated),
from_micros(nullif(waits_until, '')::bigint), from_micros(nullif(started, '')::bigint),
from_micros(nullif(ended, '')::bigint), from_micros(nullif(deadline, '')::bigint), nullif(failed, '')::jsonb, uri,
lost_in_a_row, avoided, bound_to, feed_sequence + items
