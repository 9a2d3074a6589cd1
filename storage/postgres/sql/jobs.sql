-- Jobs as their users drive them. A live job's row lies in jobs, an ended one's in ended_jobs; job_specs has one of each.

-- name: Now
SELECT micros(clock_timestamp())

-- name: InsertJobs
-- Of many submissions those whose uid, request id and name are not taken, by each other neither; FindRivals tells by whom.
-- Each is a microsecond younger than the one before it, so that they queue in this order. It is the only statement of its
-- transaction, which is then one round trip. ReadFeeds makes the first item of their feeds.
WITH submitted AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[],
                       $8::integer[], $9::integer[], $10::text[], $11::bigint[], $12::bigint[], $13::integer[],
                       $14::bigint[], $15::text[], $16::text[], $17::text[], $18::text[], $19::integer[],
                       $20::text[], $21::integer[], $22::integer[], $23::integer[], $24::boolean[])
    WITH ORDINALITY
    AS s (uid, project, job_id, creator, request_id, labels, priority, min_slots, max_slots, device, bytes_per_slot,
          total_steps, max_restarts, backoff_us, reason_code, reason_message, spec, plan_summary, logical_ranks,
          arithmetic_rule, group_ranks, slot_step, most_slots, second_owner, place)
  LIMIT $25  -- how many there are, for the planner: a plan that serves any number takes them for few
), named AS (
  INSERT INTO job_specs (job_uid, project, job_id, request_id, create_time, spec, plan_summary)
  SELECT uid, project, job_id, nullif(request_id, ''), now() + (place - 1) * interval '1 microsecond', spec::bytea,
         plan_summary::bytea
  FROM submitted ORDER BY place  -- of two with one name the first has it
  ON CONFLICT DO NOTHING
  RETURNING job_uid AS uid, create_time
), job AS (
  INSERT INTO jobs ({submitted_columns})
  SELECT uid, project, job_id, creator, nullif(request_id, ''), labels::jsonb, priority, min_slots, max_slots,
         device, bytes_per_slot, total_steps, max_restarts, backoff_us, create_time, create_time, 'QUEUED', reason_code,
         reason_message, 'NONE', 1, 0, 0, 0, '', 1, logical_ranks, arithmetic_rule, group_ranks, slot_step, most_slots,
         second_owner
  FROM submitted JOIN named USING (uid)
)
SELECT uid, micros(create_time) FROM named

-- name: InsertJob
-- As InsertJobs, of a submission that comes alone, in half the time. The values come in the same order.
WITH named AS (
  INSERT INTO job_specs (job_uid, project, job_id, request_id, create_time, spec, plan_summary)
  VALUES ($1, $2, $3, nullif($5::text, ''), now(), $17::bytea, $18::bytea)
  ON CONFLICT DO NOTHING
  RETURNING job_uid AS uid, create_time
), job AS (
  INSERT INTO jobs ({submitted_columns})
  SELECT uid, $2, $3, $4, nullif($5::text, ''), $6::jsonb, $7::integer, $8::integer, $9::integer, $10, $11::bigint,
         $12::bigint, $13::integer, $14::bigint, create_time, create_time, 'QUEUED', $15, $16, 'NONE', 1, 0, 0, 0, '',
         1, $19::integer, $20, $21::integer, $22::integer, $23::integer, $24::boolean
  FROM named
)
SELECT uid, micros(create_time) FROM named

-- name: FindRivals
-- One look-up for each of what they may have taken.
WITH s AS (
  SELECT * FROM job_specs WHERE job_uid = $1
  UNION
  SELECT * FROM job_specs WHERE project = $2 AND job_id = $3
  UNION
  SELECT * FROM job_specs WHERE project = $2 AND request_id = nullif($4::text, '')
)
{any_job}

-- name: GetJob
WITH s AS (SELECT * FROM job_specs WHERE project = $1 AND job_id = $2)
{any_job}

-- name: FindSpec
SELECT job_uid, spec, plan_summary FROM job_specs WHERE project = $1 AND job_id = $2

-- name: LockJobByUid
SELECT {job_columns} FROM jobs j WHERE j.uid = $1 FOR UPDATE

-- name: LockEndedJobByUid
SELECT {job_columns} FROM ended_jobs j
WHERE j.uid = $1 AND j.create_time = (SELECT create_time FROM job_specs WHERE job_uid = $1) FOR UPDATE

-- name: JobExists
SELECT s.job_id, coalesce((SELECT max(attempt) FROM attempts WHERE job_uid = $1), 0) AS attempt
FROM job_specs s
WHERE s.job_uid = $1
  AND (EXISTS (SELECT FROM jobs WHERE uid = $1)
       OR EXISTS (SELECT FROM ended_jobs WHERE uid = $1 AND create_time = s.create_time))

-- name: UpdateJob
-- Fenced: written only if version and attempt are what was read under the lock.
UPDATE jobs SET ({changing_columns}) = ROW ({changed_values})
WHERE uid = $1 AND version = $2 AND attempt = $3
RETURNING feed_sequence

-- name: UpdateSlots
-- Before UpdateJob or EndJob, whose fence undoes it.
UPDATE jobs SET min_slots = $2, max_slots = $3, bytes_per_slot = $4, resize = $5::jsonb, slot_step = $6, most_slots = $7,
  group_ranks = $8, layout = $9
WHERE uid = $1

-- name: ResizeEndedJob
-- Of a job that ended, what UpdateSlots changes of one that lives. Fenced as UpdateJob is.
UPDATE ended_jobs SET min_slots = $4, max_slots = $5, bytes_per_slot = $6, slot_step = $7, most_slots = $8, group_ranks = $9,
  layout = $10, version = $11
WHERE uid = $1 AND create_time = (SELECT create_time FROM job_specs WHERE job_uid = $1) AND version = $2 AND attempt = $3
RETURNING feed_sequence

-- name: UpdateJobs
-- UpdateJob for many.
UPDATE jobs j SET ({changing_columns}) = ROW ({moved_values})
FROM {moves}
WHERE j.uid = u.moved AND j.version = u.version_before AND j.attempt = u.attempt_before
RETURNING j.uid, j.feed_sequence

-- name: EndJob
-- As UpdateJob, of a job that ends: its row moves.
WITH gone AS (DELETE FROM jobs WHERE uid = $1 AND version = $2 AND attempt = $3 RETURNING *)
INSERT INTO ended_jobs ({lasting_columns}, {changing_columns}, left_state, label_pairs)
SELECT {lasting_columns}, {changed_values}, state, label_pairs(labels) FROM gone
RETURNING feed_sequence

-- name: ReviveJob
-- As UpdateJob, of a job that ended and goes on: its row comes back.
WITH gone AS (
  DELETE FROM ended_jobs
  WHERE uid = $1 AND create_time = (SELECT create_time FROM job_specs WHERE job_uid = $1) AND version = $2 AND attempt = $3
  RETURNING *
)
INSERT INTO jobs ({lasting_columns}, {changing_columns}, left_state)
SELECT {lasting_columns}, {changed_values}, state FROM gone
RETURNING feed_sequence

-- name: EndJobs
-- EndJob for many.
WITH u AS (SELECT * FROM {moves}), gone AS (
  DELETE FROM jobs j USING u WHERE j.uid = u.moved AND j.version = u.version_before AND j.attempt = u.attempt_before
  RETURNING j.*
)
INSERT INTO ended_jobs ({lasting_columns}, {changing_columns}, left_state, label_pairs)
SELECT {lasting_columns}, {moved_values}, state, label_pairs(labels) FROM gone JOIN u ON u.moved = uid
RETURNING uid, feed_sequence

-- name: DeleteMetrics
-- The newest, as many as one transaction should remove.
DELETE FROM metrics WHERE job_uid = $1 AND sequence IN (
  SELECT sequence FROM metrics WHERE job_uid = $1 ORDER BY sequence DESC LIMIT $2)

-- name: DeleteJob
WITH named AS (
  DELETE FROM job_specs WHERE job_uid = $1 RETURNING job_uid, create_time
), job AS (
  DELETE FROM ended_jobs j USING named n WHERE j.uid = n.job_uid AND j.create_time = n.create_time
), items AS (
  DELETE FROM feed f USING named n WHERE f.job_uid = n.job_uid AND f.month = month_of(n.create_time)
), tried AS (
  DELETE FROM ranks WHERE job_uid = $1 AND state <> 'LOST'  -- whose slots are taken until they are proven gone
)
DELETE FROM checkpoints WHERE job_uid = $1
