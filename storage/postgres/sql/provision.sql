-- Nodes that the yard asked engines for: as many as there are nodes, and for an hour those that were.

-- name: ReadYard
SELECT id FROM yard

-- name: ReadYardEpoch
SELECT epoch FROM yard

-- name: ListNodeRequests
SELECT {node_request_columns} FROM node_requests ORDER BY node

-- name: FindNodeRequest
SELECT {node_request_columns} FROM node_requests WHERE node = $1

-- name: ListLiveNodeRequests
SELECT {node_request_columns} FROM node_requests WHERE state <> 'ENDED' ORDER BY node

-- name: AddNodeRequests
INSERT INTO node_requests (node, pool, state, why, create_time, change_time)
SELECT node, pool, 'WANTED', why, clock_timestamp(), clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::text[]) AS u (node, pool, why)
ON CONFLICT (node) DO NOTHING

-- name: UpdateNodeRequests
UPDATE node_requests r SET
  state = u.state, engine_id = u.engine_id, engine_words = u.engine_words, failed = u.failed,
  proven_gone = u.proven_gone, change_time = clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::boolean[])
  AS u (node, state, engine_id, engine_words, failed, proven_gone)
WHERE r.node = u.node AND r.state <> 'ENDED'

-- name: HoldNodeRequest
-- Whoever gives the node up waits until this transaction is over, and is then seen.
SELECT state IN ('RELEASING', 'ENDED') AS given_up FROM node_requests WHERE node = $1 FOR SHARE

-- name: DrainNodes
UPDATE nodes SET draining = true WHERE name = ANY ($1::text[]) AND NOT draining

-- name: ReleaseIdleNodes
-- Under the leader's lock, so that nothing is placed meanwhile. Their nodes drain by a statement behind it, which sees those
-- that registered while this one waited for them.
UPDATE node_requests r SET state = 'RELEASING', change_time = clock_timestamp()
WHERE r.node = ANY ($1::text[]) AND r.state IN ('WANTED', 'ASKED')
  AND NOT EXISTS (SELECT FROM ranks WHERE ranks.node = r.node AND ranks.state IN ('ASSIGNED', 'RUNNING'))
RETURNING r.node

-- name: ForgetEndedNodes
-- The lease first, as whoever registers does.
WITH gone AS (
  SELECT l.node FROM leases l JOIN nodes n ON n.name = l.node JOIN node_requests r ON r.node = l.node
  WHERE r.state = 'ENDED' AND NOT n.reachable
    AND NOT EXISTS (SELECT FROM ranks k WHERE k.node = n.name AND k.state IN ('ASSIGNED', 'RUNNING', 'LOST'))
  FOR UPDATE OF l SKIP LOCKED
), failures AS (
  DELETE FROM node_failures f USING gone g WHERE f.node = g.node
)
DELETE FROM nodes n USING gone g WHERE n.name = g.node AND NOT n.reachable RETURNING n.name

-- name: ForgetEndedKeys
-- Of nodes that are forgotten; in a transaction that has no lease locked, as whoever registers locks its key first.
DELETE FROM node_keys k USING node_requests r
WHERE k.node = r.node AND r.state = 'ENDED' AND NOT EXISTS (SELECT FROM nodes WHERE name = r.node)

-- name: ForgetEndedRequests
DELETE FROM node_requests r
WHERE r.state = 'ENDED' AND r.change_time < clock_timestamp() - $1::bigint * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM nodes WHERE name = r.node)
