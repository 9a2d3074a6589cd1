-- How long what has ended is kept, and its end. Months are written YYYY_MM, as in the names of partitions.

-- name: GetRetention
SELECT ended_jobs_us, gone_nodes_us FROM retention

-- name: SetRetention
UPDATE retention SET ended_jobs_us = $1, gone_nodes_us = $2

-- name: TryRetention
-- Any fixed number; released with the transaction.
SELECT pg_try_advisory_xact_lock(1417245285)

-- name: WantedMonths
-- This one, the next two, and those of rows that came before their partition was made.
SELECT to_char(month, 'YYYY-MM-DD')
FROM (SELECT month_of(now() + n * interval '1 month') AS month FROM generate_series(0, 2) AS n
      UNION SELECT month_of(create_time) FROM ended_jobs_default
      UNION SELECT month FROM feed_default) AS wanted
ORDER BY month

-- name: MakeMonth
SELECT make_month($1::text, $2::text, $3::date)

-- name: DetachedMonth
-- Whose jobs' other records are still to be removed.
SELECT substr(relname, 11) FROM pg_class
WHERE relname ~ '^aged_jobs_[0-9]{4}_[0-9]{2}$' AND pg_table_is_visible(oid) ORDER BY 1 LIMIT 1

-- name: ForgetDeletedJobs
-- Whoever reads changes has read of them long ago (SchedulerStore::kOldestPosition).
DELETE FROM deleted_jobs WHERE delete_time < now() - interval '1 day'

-- name: OldMonths
SELECT month
FROM (SELECT substr(c.relname, 12) AS month FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
      WHERE i.inhparent = 'ended_jobs'::regclass AND c.relname ~ '^ended_jobs_[0-9]{4}_[0-9]{2}$') AS parts
WHERE to_date(month, 'YYYY_MM') + interval '1 month' <= now() - $1::bigint * interval '1 microsecond'
ORDER BY month

-- name: MonthIsOver
SELECT NOT EXISTS (SELECT FROM jobs WHERE create_time >= {first_of_month} AND create_time < {next_of_month})
   AND NOT EXISTS (SELECT FROM ended_jobs
                   WHERE create_time >= {first_of_month} AND create_time < {next_of_month}
                     AND end_time > now() - $2::bigint * interval '1 microsecond') AS over,
   pg_snapshot_xmin(pg_current_snapshot())::text AS since

-- name: MonthChanged
SELECT EXISTS (SELECT FROM jobs WHERE create_time >= {first_of_month} AND create_time < {next_of_month})
    OR EXISTS (SELECT FROM ended_jobs
               WHERE create_time >= {first_of_month} AND create_time < {next_of_month} AND changed >= $2::xid8
                 AND {of_this_cluster})

-- name: RemoveRecords
-- Of some jobs of a detached month, which stands where {month} does.
WITH piece AS (
  DELETE FROM aged_jobs_{month}
  WHERE ctid = ANY (ARRAY(SELECT ctid FROM aged_jobs_{month} LIMIT $1)) RETURNING uid
), named AS (
  DELETE FROM job_specs s USING piece p WHERE s.job_uid = p.uid
), tried AS (
  DELETE FROM ranks r USING piece p WHERE r.job_uid = p.uid AND r.state <> 'LOST'
), points AS (
  DELETE FROM metrics m USING piece p WHERE m.job_uid = p.uid
), written AS (
  DELETE FROM checkpoints c USING piece p WHERE c.job_uid = p.uid
)
SELECT count(*) FROM piece

-- name: ForgetNodes
-- The lease first, as whoever registers does.
WITH gone AS (
  SELECT l.node FROM leases l JOIN nodes n ON n.name = l.node
  WHERE NOT n.reachable AND l.lease_end <= now() - $1::bigint * interval '1 microsecond'
    AND NOT EXISTS (SELECT FROM ranks r WHERE r.node = n.name AND r.state IN ('ASSIGNED', 'RUNNING'))
  ORDER BY l.node LIMIT 100 FOR UPDATE OF l SKIP LOCKED
), failures AS (
  DELETE FROM node_failures f USING gone g WHERE f.node = g.node
), lost AS (
  UPDATE ranks r SET state = 'GONE' FROM gone g
  WHERE r.node = g.node AND r.state = 'LOST' AND EXISTS (SELECT FROM job_specs WHERE job_uid = r.job_uid)
), deleted AS (  -- with their jobs, but for these rows
  DELETE FROM ranks r USING gone g
  WHERE r.node = g.node AND r.state = 'LOST' AND NOT EXISTS (SELECT FROM job_specs WHERE job_uid = r.job_uid)
)
DELETE FROM nodes n USING gone g WHERE n.name = g.node AND NOT n.reachable RETURNING n.name
