-- What the leader reads and writes.

-- name: Lead
-- A holder keeps its epoch; another gets the next one when nobody leads, after another process of its own replica, or
-- when the lease still stands at beat $3, where it stood for too long. lease_end is for people, and for older servers.
UPDATE leader SET
  epoch = epoch + (holder <> $1)::integer, holder = $1,
  lease_end = clock_timestamp() + $2::bigint * interval '1 microsecond'
WHERE holder = '' OR split_part(holder, '/', 1) = split_part($1, '/', 1) OR beat = $3::bigint
RETURNING epoch, micros(lease_end) AS lease_end

-- name: ReadLeader
SELECT holder, epoch, beat FROM leader

-- name: StandDown
UPDATE leader SET holder = '', lease_end = '-infinity' WHERE holder = $1

-- name: LockLeader
-- Held to the end of the transaction: no newer leader can come in between, and what one leader applies
-- is applied one after the other, so that a check for free slots is exact. No statement behind it takes longer
-- than $1 ms: what takes longer is too much for one transaction, and others wait for its locks.
SELECT epoch, set_config('statement_timeout', $1, true) FROM leader FOR UPDATE

-- Changes since an earlier reading: of the transactions that its snapshot ($1) did not see. Each row says which one
-- changed it last in what the scheduler looks at (triggers stamp it).

-- name: ReadPosition
-- With another timeline, after a fail-over, transactions may be counted anew. What follows in the transaction is
-- planned once per connection: it looks rows up by key whatever the values are, and to plan it takes longer than to run
-- it, many times a second. What follows reads only and holds no lock, so that nobody waits while the rows of a long queue
-- are decoded between two statements.
SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline, pg_current_snapshot()::text AS snapshot,
       micros(clock_timestamp()) AS now, set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('idle_in_transaction_session_timeout', '20s', true)

-- name: ChangedJobs
-- What is past this snapshot, too, was written in another cluster, whose transactions were counted higher, and restored.
WITH unseen AS (
  SELECT uid FROM jobs WHERE changed >= pg_snapshot_xmax($1::pg_snapshot) AND {of_this_cluster}
  UNION ALL
  SELECT uid FROM jobs WHERE changed = ANY (ARRAY (SELECT pg_snapshot_xip($1::pg_snapshot)))
  UNION ALL
  SELECT uid FROM ended_jobs WHERE changed >= pg_snapshot_xmax($1::pg_snapshot) AND {of_this_cluster}
  UNION ALL
  SELECT uid FROM ended_jobs WHERE changed = ANY (ARRAY (SELECT pg_snapshot_xip($1::pg_snapshot)))
  UNION ALL
  SELECT job_uid FROM ranks WHERE changed >= pg_snapshot_xmax($1::pg_snapshot) AND {of_this_cluster}
  UNION ALL
  SELECT job_uid FROM ranks WHERE changed = ANY (ARRAY (SELECT pg_snapshot_xip($1::pg_snapshot)))
  UNION ALL
  SELECT uid FROM deleted_jobs
  WHERE (changed >= pg_snapshot_xmax($1::pg_snapshot) AND {of_this_cluster})
     OR changed = ANY (ARRAY (SELECT pg_snapshot_xip($1::pg_snapshot)))
)
SELECT DISTINCT uid FROM unseen

-- name: ChangedNodes
WITH unseen AS (
  SELECT name FROM nodes WHERE changed >= pg_snapshot_xmax($1::pg_snapshot) AND {of_this_cluster}
  UNION ALL
  SELECT name FROM nodes WHERE changed = ANY (ARRAY (SELECT pg_snapshot_xip($1::pg_snapshot)))
  UNION ALL
  SELECT node FROM ranks WHERE lost AND changed >= pg_snapshot_xmax($1::pg_snapshot) AND {of_this_cluster}
  UNION ALL
  SELECT node FROM ranks WHERE lost AND changed = ANY (ARRAY (SELECT pg_snapshot_xip($1::pg_snapshot)))
  UNION ALL
  SELECT node FROM node_failures WHERE changed >= pg_snapshot_xmax($1::pg_snapshot) AND {of_this_cluster}
  UNION ALL
  SELECT node FROM node_failures WHERE changed = ANY (ARRAY (SELECT pg_snapshot_xip($1::pg_snapshot)))
)
SELECT {node_columns}
FROM (SELECT DISTINCT name FROM unseen) AS u
  CROSS JOIN LATERAL (SELECT * FROM nodes WHERE name = u.name OFFSET 0) AS n
  CROSS JOIN LATERAL (SELECT * FROM leases WHERE node = u.name OFFSET 0) AS l

-- name: ChangedSlotLimits
SELECT name, max_slots FROM projects WHERE changed >= pg_snapshot_xmax($1::pg_snapshot) AND {of_this_cluster}
UNION ALL
SELECT name, max_slots FROM projects WHERE changed = ANY (ARRAY (SELECT pg_snapshot_xip($1::pg_snapshot)))

-- name: AllSlotLimits
SELECT name, max_slots FROM projects WHERE max_slots IS NOT NULL

-- name: ReadLeases
SELECT node, beat, disk_free_bytes, health::text AS health FROM leases

-- name: AllLiveJobs
SELECT {job_columns} FROM jobs j WHERE j.state IN ('QUEUED', 'STARTING', 'RUNNING', 'SUSPENDING', 'CANCELLING')

-- name: AllLiveAttempts
SELECT {attempt_columns}
FROM jobs j JOIN ranks r ON r.job_uid = j.uid AND r.attempt = j.attempt
WHERE j.state IN ('STARTING', 'RUNNING', 'SUSPENDING', 'CANCELLING') ORDER BY r.job_uid, r.rank

-- name: SomeLiveJobs
-- OFFSET keeps this a look-up by uid for each. As a join it became a reading of the whole queue by state: for a minute
-- after 20,000 jobs have arrived, until they are analyzed, statistics say that there are few.
SELECT {job_columns}
FROM unnest($1::text[]) AS wanted (uid) CROSS JOIN LATERAL (SELECT * FROM jobs WHERE uid = wanted.uid OFFSET 0) AS j
WHERE j.state IN ('QUEUED', 'STARTING', 'RUNNING', 'SUSPENDING', 'CANCELLING')

-- name: LoseNodes
-- A lease that was renewed since the decision is left alone.
WITH lost AS (
  UPDATE leases l SET held = false
  FROM unnest($1::text[], $2::bigint[]) AS decided (node, beat)
  WHERE l.node = decided.node AND l.beat = decided.beat AND l.held
  RETURNING l.node
)
UPDATE nodes n SET reachable = false, leave_time = NULL FROM lost WHERE n.name = lost.node RETURNING n.name

-- name: LockJobs
SELECT uid FROM jobs WHERE uid = ANY ($1::text[]) ORDER BY uid FOR UPDATE

-- name: LockPlacedJobs
SELECT {job_columns} FROM jobs j WHERE j.uid = ANY ($1::text[]) ORDER BY j.uid FOR UPDATE

-- name: NewestCheckpoints
SELECT DISTINCT ON (job_uid) job_uid, step, attempt, uri, bytes, manifest_sha256, weights_sha256, final,
       micros(create_time) AS create_time, metrics::text AS metrics
FROM checkpoints WHERE job_uid = ANY ($1::text[]) ORDER BY job_uid, step DESC

-- The statements below write what many placements say, a table each. They are planned with their values: a plan for
-- arrays of any length takes them for short.

-- name: PlaceJobs
-- Fenced as UpdateJob is.
UPDATE jobs j SET
  state = 'STARTING', reason_code = u.code, reason_message = u.message, suspend_cause = 'NONE',
  version = u.version, attempt = u.attempt, step = u.step, update_time = from_micros($8), not_before = NULL,
  feed_sequence = feed_sequence + u.items
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
  AS u (uid, version, attempt, code, message, step, items)
WHERE j.uid = u.uid AND j.version = u.version - 1 AND j.attempt = u.attempt - 1 AND j.state = 'QUEUED'
RETURNING j.uid, j.feed_sequence


-- name: InsertRanks
-- The first rank of each has what is kept of the attempt; of the others those columns are empty.
INSERT INTO ranks (job_uid, attempt, rank, node, slots, state, outcome, acked_sequence, node_uid, node_instance, claim,
                   world_size, restore_step, restore_uri, restore_manifest_sha256, create_time, layout)
SELECT p.job_uid, p.attempt, p.rank, p.node, p.slots::integer[], 'ASSIGNED', 'NONE', 0, p.uid, p.instance, p.claim,
       a.world_size, a.step, a.uri, a.manifest, CASE WHEN p.rank = 0 THEN from_micros($14) END, coalesce(a.layout, '')
FROM unnest($1::text[], $2::bigint[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
       AS p (job_uid, attempt, rank, node, slots, uid, instance, claim)
  LEFT JOIN unnest($9::text[], $10::integer[], $11::bigint[], $12::text[], $13::text[], $15::text[])
       AS a (job_uid, world_size, step, uri, manifest, layout) ON a.job_uid = p.job_uid AND p.rank = 0

-- name: UpdateReasons
-- A job that somebody has locked is about to change: it is left to the next pass, and nobody is waited for. One by one,
-- for the reason that SomeLiveJobs has.
WITH free AS (
  SELECT u.* FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[]) AS u (uid, version, code, message)
    CROSS JOIN LATERAL (
      SELECT FROM jobs WHERE uid = u.uid AND version = u.version AND state = 'QUEUED'
      FOR NO KEY UPDATE SKIP LOCKED) AS j
)
UPDATE jobs j SET reason_code = free.code, reason_message = free.message FROM free
WHERE j.uid = free.uid AND j.version = free.version AND j.state = 'QUEUED'
