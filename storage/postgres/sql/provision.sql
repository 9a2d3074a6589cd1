-- Nodes that the yard asked engines for: as many as there are nodes, and for an hour those that were.

-- name: ReadYard
SELECT id FROM yard

-- name: ListNodeRequests
SELECT {node_request_columns} FROM node_requests ORDER BY node

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

-- name: ReleaseIdleNodes
-- Under the leader's lock, so that nothing is placed meanwhile.
WITH idle AS (
  SELECT r.node FROM node_requests r
  WHERE r.node = ANY ($1::text[]) AND r.state IN ('WANTED', 'ASKED')
    AND NOT EXISTS (SELECT FROM ranks WHERE ranks.node = r.node AND ranks.state IN ('ASSIGNED', 'RUNNING', 'LOST'))
), drained AS (
  UPDATE nodes n SET draining = true FROM idle WHERE n.name = idle.node
)
UPDATE node_requests r SET state = 'RELEASING', change_time = clock_timestamp() FROM idle WHERE r.node = idle.node
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

-- name: ForgetEndedRequests
DELETE FROM node_requests r
WHERE r.state = 'ENDED' AND r.change_time < clock_timestamp() - $1::bigint * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM nodes WHERE name = r.node)
