-- Join tokens, and the keys of nodes.

-- name: AddJoinToken
INSERT INTO join_tokens (id, sha256, pool, creator, most_joins, create_time, expire_time)
SELECT $1, $2, $3, $4, $5::integer, c.now, c.now + $6::bigint * interval '1 microsecond'
FROM (SELECT clock_timestamp() AS now) AS c
ON CONFLICT (id) DO UPDATE SET id = excluded.id
RETURNING {join_token_columns}

-- name: ForgetJoinTokens
DELETE FROM join_tokens WHERE expire_time < now() - $1::bigint * interval '1 microsecond'

-- name: ListJoinTokens
SELECT {join_token_columns} FROM join_tokens ORDER BY create_time DESC, id

-- name: RevokeJoinToken
UPDATE join_tokens SET revoke_time = coalesce(revoke_time, clock_timestamp()) WHERE id = $1
RETURNING {join_token_columns}

-- name: FindJoinToken
SELECT {join_token_columns}, micros(clock_timestamp()) AS now FROM join_tokens WHERE sha256 = $1

-- name: LockJoinToken
SELECT {join_token_columns}, micros(clock_timestamp()) AS now FROM join_tokens WHERE sha256 = $1 FOR UPDATE

-- name: LockNodeKeys
-- Two machines that ask for one name at the same time wait for each other, and revocations for both; readers do not.
SELECT pg_advisory_xact_lock(1417245286)

-- name: CountJoin
UPDATE join_tokens SET joins = joins + 1 WHERE id = $1

-- name: FindNodeKey
SELECT {node_key_columns} FROM node_keys WHERE fingerprint = $1

-- name: HoldNodeKey
-- Whoever revokes it waits until this transaction is over.
SELECT {node_key_columns} FROM node_keys WHERE fingerprint = $1 FOR SHARE

-- name: RegisteredUid
SELECT uid FROM nodes WHERE name = $1 AND reachable

-- name: FindKeyOfName
SELECT {node_key_columns} FROM node_keys WHERE node = $1 AND revoke_time IS NULL

-- name: WriteNodeKey
INSERT INTO node_keys (fingerprint, node, node_uid, pool, token_id, join_time)
VALUES ($1, $2, $3, $4, $5, from_micros($6))
ON CONFLICT (fingerprint) DO UPDATE SET pool = excluded.pool, token_id = excluded.token_id, join_time = excluded.join_time

-- name: RevokeKeyOfName
UPDATE node_keys SET revoke_time = clock_timestamp(), revoked_by = $2 WHERE node = $1 AND revoke_time IS NULL
RETURNING {node_key_columns}

-- name: FindRevokedKeyOfName
SELECT {node_key_columns} FROM node_keys WHERE node = $1 ORDER BY revoke_time DESC LIMIT 1

-- name: TakeLeaseBack
-- Its session cannot renew it from now on, nothing is placed there any more (IsRevoked), and the leader finds it over. The node
-- is touched for the leader to read it again.
WITH taken AS (UPDATE leases SET incarnation = incarnation || ' revoked' WHERE node = $1 RETURNING node)
UPDATE nodes n SET name = n.name FROM taken t WHERE n.name = t.node
