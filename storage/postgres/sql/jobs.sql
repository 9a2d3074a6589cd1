-- Jobs as their users drive them.

-- name: Now
SELECT micros(clock_timestamp())

-- name: InsertJobs
-- Of many submissions those whose uid, request id and name are not taken, by each other neither; FindRivals tells by whom.
-- It is the only statement of its transaction, which is then one round trip.
WITH submitted AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[],
                       $8::integer[], $9::integer[], $10::text[], $11::bigint[], $12::bigint[], $13::integer[],
                       $14::bigint[], $15::text[], $16::text[], $17::text[], $18::text[], $19::text[])
    AS s (uid, project, job_id, creator, request_id, labels, priority, min_slots, max_slots, device, bytes_per_slot,
          total_steps, max_restarts, backoff_us, reason_code, reason_message, spec, plan_summary, feed)
), job AS (
  INSERT INTO jobs (uid, project, job_id, creator, request_id, labels, priority, min_slots, max_slots,
                    device, bytes_per_slot, total_steps, max_restarts, backoff_us, create_time,
                    update_time, state, reason_code, reason_message, suspend_cause, version, attempt,
                    restarts, step, newest_checkpoint_uri, feed_sequence)
  SELECT uid, project, job_id, creator, nullif(request_id, ''), labels::jsonb, priority, min_slots, max_slots,
         device, bytes_per_slot, total_steps, max_restarts, backoff_us, now(), now(), 'QUEUED', reason_code,
         reason_message, 'NONE', 1, 0, 0, 0, '', 1
  FROM submitted
  ON CONFLICT DO NOTHING
  RETURNING uid, create_time
), spec AS (
  INSERT INTO job_specs (job_uid, spec, plan_summary)
  SELECT uid, spec::bytea, plan_summary::bytea FROM submitted JOIN job USING (uid)
), feed AS (
  INSERT INTO feed (job_uid, sequence, time, attempt, kind, body)
  SELECT uid, 1, create_time, 0, 'STATE', feed::jsonb FROM submitted JOIN job USING (uid)
)
SELECT uid, micros(create_time) FROM job

-- name: FindRivals
SELECT {job_columns}, s.spec, s.plan_summary
FROM jobs j JOIN job_specs s ON s.job_uid = j.uid
WHERE j.uid = $1 OR (j.project = $2 AND (j.job_id = $3 OR j.request_id = nullif($4::text, '')))

-- name: GetJob
SELECT {job_columns}, s.spec, s.plan_summary
FROM jobs j JOIN job_specs s ON s.job_uid = j.uid
WHERE j.project = $1 AND j.job_id = $2

-- name: LockJob
SELECT {job_columns}, s.spec, s.plan_summary
FROM jobs j JOIN job_specs s ON s.job_uid = j.uid
WHERE j.project = $1 AND j.job_id = $2
FOR UPDATE OF j

-- name: LockJobByUid
SELECT {job_columns} FROM jobs j WHERE j.uid = $1 FOR UPDATE

-- name: JobExists
SELECT job_id, attempt FROM jobs WHERE uid = $1

-- name: UpdateJob
-- Fenced: written only if version and attempt are what was read under the lock.
UPDATE jobs SET
  state = $4, reason_code = $5, reason_message = $6, suspend_cause = $7, version = $8, attempt = $9,
  restarts = $10, step = $11, update_time = from_micros($12), not_before = from_micros($13),
  start_time = from_micros($14), end_time = from_micros($15), suspend_deadline = from_micros($16),
  failure = $17::jsonb, newest_checkpoint_uri = $18, feed_sequence = feed_sequence + $19::bigint
WHERE uid = $1 AND version = $2 AND attempt = $3
RETURNING feed_sequence

-- name: UpdateJobs
-- UpdateJob for many. Empty texts are NULL.
UPDATE jobs j SET
  state = u.state, reason_code = u.code, reason_message = u.message, suspend_cause = u.cause, version = u.version,
  attempt = u.attempt, restarts = u.restarts, step = u.step, update_time = from_micros(u.updated),
  not_before = from_micros(nullif(u.not_before, '')::bigint), start_time = from_micros(nullif(u.started, '')::bigint),
  end_time = from_micros(nullif(u.ended, '')::bigint),
  suspend_deadline = from_micros(nullif(u.deadline, '')::bigint), failure = nullif(u.failure, '')::jsonb,
  newest_checkpoint_uri = u.uri, feed_sequence = feed_sequence + u.items
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
            $9::bigint[], $10::integer[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], $15::text[],
            $16::text[], $17::text[], $18::text[], $19::bigint[])
  AS u (uid, version_before, attempt_before, state, code, message, cause, version, attempt, restarts, step, updated,
        not_before, started, ended, deadline, failure, uri, items)
WHERE j.uid = u.uid AND j.version = u.version_before AND j.attempt = u.attempt_before
RETURNING j.uid, j.feed_sequence

-- name: DeleteMetrics
-- The newest, as many as one transaction should remove.
DELETE FROM metrics WHERE job_uid = $1 AND sequence IN (
  SELECT sequence FROM metrics WHERE job_uid = $1 ORDER BY sequence DESC LIMIT $2)

-- name: DeleteJob
DELETE FROM jobs WHERE uid = $1 AND version = $2
