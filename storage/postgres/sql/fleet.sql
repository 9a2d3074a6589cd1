-- Nodes, attempts and ranks.

-- name: RegisterNode
-- No row: another agent holds the name. $8: the holder was read, under the lock of its lease, and its name may be taken over
-- (CheckNameIsFree). $9: the yard has given the node up, so it drains. The lease is written by RegisterLease, in the same transaction.
INSERT INTO nodes AS n (name, uid, instance, address, agent_version, labels, slots, draining, reachable, create_time)
VALUES ($1, $2, $3, $4, $5, $6::jsonb, $7::jsonb, $9::boolean, true, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET
  uid = excluded.uid, instance = excluded.instance, address = excluded.address,
  agent_version = excluded.agent_version, labels = excluded.labels, slots = excluded.slots, reachable = true,
  leave_time = NULL, draining = n.draining OR excluded.draining,
  -- A new boot: what its failures still say, the leader decides anew.
  cordon = CASE WHEN n.instance = excluded.instance THEN n.cordon ELSE '' END,
  boot_time = CASE WHEN n.instance = excluded.instance THEN n.boot_time ELSE clock_timestamp() END
WHERE NOT n.reachable OR $8::boolean
RETURNING name

-- name: LockLease
-- Before its node, as LoseNodes does.
SELECT FROM leases WHERE node = $1 FOR UPDATE

-- name: NowInSession
SELECT micros(clock_timestamp()) AS now,
       EXISTS (SELECT FROM leases WHERE node = $1 AND incarnation = $2 AND held) AS holds

-- name: RegisterLease
INSERT INTO leases AS l (node, incarnation, beat, held, lease_end, usage)
VALUES ($1, $2, 1, true, clock_timestamp() + $3::bigint * interval '1 microsecond', '[]')
ON CONFLICT (node) DO UPDATE SET
  incarnation = excluded.incarnation, beat = l.beat + 1, held = true, lease_end = excluded.lease_end, usage = '[]',
  disk_free_bytes = NULL, health = '{}'

-- name: RenewLeases
-- By place in the arrays: whether it was renewed. Not renewed: somebody has the lease locked, and the other leases do not
-- wait for that. No row: it is over. For more than one it is planned with its values.
WITH said AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::text[]) WITH ORDINALITY
    AS u (node, incarnation, lease, usage, disk_free, health, place)
), newest AS (
  SELECT DISTINCT ON (node, incarnation) * FROM said ORDER BY node, incarnation, place DESC
), free AS (
  SELECT l.node FROM leases l JOIN newest n ON n.node = l.node AND n.incarnation = l.incarnation
  WHERE l.held FOR UPDATE OF l SKIP LOCKED
), renewed AS (
  UPDATE leases l SET
    beat = beat + 1,
    lease_end = greatest(lease_end, clock_timestamp() + n.lease * interval '1 microsecond'),
    usage = n.usage::jsonb, disk_free_bytes = nullif(n.disk_free, -1), health = n.health::jsonb
  FROM free f, newest n
  WHERE l.node = f.node AND n.node = l.node AND n.incarnation = l.incarnation
  RETURNING l.node, l.incarnation
)
SELECT s.place, r.node IS NOT NULL AS renewed
FROM said s
  JOIN leases l ON l.node = s.node AND l.incarnation = s.incarnation AND l.held
  LEFT JOIN renewed r ON r.node = s.node AND r.incarnation = s.incarnation

-- name: ListNodes
SELECT {node_columns} FROM nodes n JOIN leases l ON l.node = n.name ORDER BY n.name

-- name: ReadNode
SELECT {node_columns} FROM nodes n JOIN leases l ON l.node = n.name WHERE n.name = $1

-- name: ShareNodes
-- Locked against changes until the placement on them is committed; their leases are not.
SELECT {node_columns} FROM nodes n JOIN leases l ON l.node = n.name
WHERE n.name = ANY ($1::text[]) ORDER BY n.name FOR SHARE OF n

-- name: SetDraining
-- Whoever says that the node is to be used again has looked at it: its failures so far keep nothing from it any more.
UPDATE nodes SET
  draining = $2,
  lifted_time = CASE WHEN NOT $2 AND cordon <> '' THEN clock_timestamp() ELSE lifted_time END,
  cordon = CASE WHEN $2 THEN cordon ELSE '' END
WHERE name = $1 RETURNING name

-- name: SetLeaving
-- No row: the lease of that session is over.
UPDATE nodes SET leave_time = clock_timestamp() + $3::bigint * interval '1 microsecond', leave_session = $2
WHERE name = $1 AND EXISTS (SELECT FROM leases WHERE node = $1 AND incarnation = $2 AND held) RETURNING name

-- name: CordonNodes
UPDATE nodes n SET cordon = u.reason FROM unnest($1::text[], $2::text[]) AS u (name, reason)
WHERE n.name = u.name AND n.cordon = ''

-- name: InsertNodeFailure
INSERT INTO node_failures (node, job_uid, attempt, job_id, category, time, charged)
VALUES ($1, $2, $3, $4, $5, from_micros($6), $7::boolean) ON CONFLICT DO NOTHING

-- name: ForgetNodeFailures
-- Of a node, those that are too old or too many. What somebody else forgets right now is not waited for.
DELETE FROM node_failures WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM node_failures f
  WHERE f.node = $1 AND (f.time < clock_timestamp() - $2::bigint * interval '1 microsecond'
    OR f.time < (SELECT time FROM node_failures n WHERE n.node = $1 ORDER BY time DESC OFFSET $3::bigint - 1 LIMIT 1))
  FOR UPDATE SKIP LOCKED))

-- name: ChargeNodeFailure
UPDATE node_failures SET charged = true WHERE node = $1 AND job_uid = $2 AND attempt = $3

-- name: ForgetLoss
DELETE FROM node_failures WHERE node = $1 AND job_uid = $2 AND attempt = $3 AND category = 'LOST'

-- name: ReadAttempts
-- Attempt 0: all of them.
SELECT {attempt_columns}
FROM ranks r WHERE r.job_uid = $1 AND ($2::bigint = 0 OR r.attempt = $2) ORDER BY r.attempt, r.rank

-- name: TakeOverClaims
-- Of an agent that proves who it is since now: until now its node's name had to do.
UPDATE ranks SET node_uid = $2, node_instance = $3
WHERE node = $1 AND state IN ('ASSIGNED', 'RUNNING') AND node_uid = '' AND $2 <> ''

-- name: LostRanksOn
SELECT job_uid, attempt, rank FROM ranks WHERE node = $1 AND state = 'LOST'

-- name: AnyLostRank
-- Among the job's ranks, which are few: OFFSET keeps the planner from looking among all lost ones.
SELECT FROM (SELECT state FROM ranks WHERE job_uid = $1 OFFSET 0) AS r WHERE r.state = 'LOST' LIMIT 1

-- name: LostRanksOfJob
SELECT job_uid, attempt, rank, node_uid, node_instance, claim FROM ranks
WHERE job_uid = $1 AND node = $2 AND state = 'LOST'

-- name: ProveGone
UPDATE ranks r SET state = 'GONE' FROM unnest($2::bigint[], $3::integer[]) AS u (attempt, rank)
WHERE r.job_uid = $1 AND r.attempt = u.attempt AND r.rank = u.rank AND r.node = $4 AND r.state = 'LOST'
RETURNING r.rank

-- name: TouchNode
-- The leader reads it again: its lost ranks are fewer, and their rows may be gone with their jobs.
UPDATE nodes SET name = name WHERE name = $1

-- name: ForgetRanks
-- Of a job that was deleted while they were lost.
DELETE FROM ranks WHERE job_uid = $1 AND state = 'GONE' AND NOT EXISTS (SELECT FROM job_specs WHERE job_uid = $1)

-- name: AliveRanks
SELECT job_uid, attempt, rank FROM ranks WHERE node = ANY ($1::text[]) AND state IN ('ASSIGNED', 'RUNNING')
ORDER BY job_uid, attempt, rank

-- name: RanksOfNode
-- That are not gone, with what says whether they should run, of the newest attempts of live jobs. OFFSET as in
-- SomeLiveJobs.
SELECT r.job_uid, r.attempt, r.rank, r.state AS rank_state, r.outcome, r.node_uid, r.node_instance, r.claim, a.world_size,
       j.version, j.state
FROM ranks r
  LEFT JOIN LATERAL (
    SELECT world_size FROM attempts WHERE job_uid = r.job_uid AND attempt = r.attempt OFFSET 0) a ON true
  LEFT JOIN LATERAL (
    SELECT version, state FROM jobs WHERE uid = r.job_uid AND attempt = r.attempt OFFSET 0) j ON true
WHERE r.node = $1 AND r.state <> 'GONE' ORDER BY r.job_uid, r.attempt, r.rank

-- name: NodeAddresses
SELECT name, address FROM nodes WHERE name = ANY ($1::text[])

-- name: DesiredJobs
-- Jobs with a rank alive on the node, with what their workers must know.
SELECT {job_columns}, s.spec, s.plan_summary,
       coalesce((SELECT p.unix_user FROM projects p WHERE p.name = j.project), '') AS unix_user
FROM jobs j JOIN job_specs s ON s.job_uid = j.uid
WHERE j.uid IN (SELECT job_uid FROM ranks WHERE node = $1 AND state IN ('ASSIGNED', 'RUNNING'))
  AND j.state IN ('STARTING', 'RUNNING', 'SUSPENDING')
ORDER BY j.uid

-- name: LiveJobs
-- Those that have not ended.
SELECT {job_columns} FROM jobs j WHERE j.uid = ANY ($1::text[])

-- name: DesiredAttempts
SELECT {attempt_columns}
FROM jobs j JOIN ranks r ON r.job_uid = j.uid AND r.attempt = j.attempt
WHERE j.uid = ANY ($1::text[]) ORDER BY r.job_uid, r.rank

-- name: HeldSlots
-- By ranks of attempts that go on; what lost ranks hold comes with the nodes.
SELECT node, unnest(slots) FROM ranks WHERE node = ANY ($1::text[]) AND state IN ('ASSIGNED', 'RUNNING')

-- name: UpdateRank
-- Fenced by the attempt and by what was stored already. What was lost may rejoin.
UPDATE ranks SET state = $4, outcome = $5, acked_sequence = $6, failure = $7::jsonb,
                 gone_time = from_micros($8), lost = lost OR $4 = 'LOST'
WHERE job_uid = $1 AND attempt = $2 AND rank = $3 AND acked_sequence <= $6
  AND (state NOT IN ('LOST', 'GONE') OR (state = 'LOST' AND $4 = 'RUNNING'))
  AND attempt = (SELECT attempt FROM jobs WHERE uid = $1)
RETURNING rank

-- The statements below write what the events of many ranks say, a table each, as UpdateRank and EndAttempt do. They are
-- planned with their values.

-- name: UpdateRanks
-- By key: with "state <> 'GONE'" the planner may read the index of all that are not gone, and with a join to jobs all
-- ranks of the attempt for each of them.
UPDATE ranks r SET state = u.state, outcome = u.outcome, acked_sequence = u.acked,
                   failure = nullif(u.failure, '')::jsonb, gone_time = from_micros(nullif(u.gone, '')::bigint)
FROM unnest($1::text[], $2::bigint[], $3::integer[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[])
       AS u (uid, attempt, rank, state, outcome, acked, failure, gone)
WHERE u.attempt = (SELECT attempt FROM jobs WHERE uid = u.uid)
  AND r.job_uid = u.uid AND r.attempt = u.attempt AND r.rank = u.rank AND r.acked_sequence <= u.acked
  AND r.state IS DISTINCT FROM 'GONE' AND r.state IS DISTINCT FROM 'LOST'
RETURNING r.rank
