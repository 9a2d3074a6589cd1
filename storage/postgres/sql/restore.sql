-- What is done once, to a database that was restored from a backup. All of it is one transaction.

-- name: RestoreLockLeader
-- Nobody leads until the transaction is over.
SELECT holder, beat FROM leader FOR UPDATE

-- name: RestoreLiveJobs
SELECT uid FROM jobs ORDER BY uid

-- name: RestoreEndedJobs
-- Those that have checkpoints.
SELECT DISTINCT c.job_uid FROM checkpoints c WHERE NOT EXISTS (SELECT FROM jobs j WHERE j.uid = c.job_uid) ORDER BY 1

-- name: RestoreNamesOfJobs
SELECT uid, project, job_id FROM jobs UNION ALL SELECT uid, project, job_id FROM ended_jobs

-- name: RestoreNewestOfEnded
UPDATE ended_jobs SET newest_checkpoint_uri = $2 WHERE uid = $1

-- name: RestoreRaiseEpoch
-- Milliseconds since 1970: if the same backup is restored twice, the yard has two epochs.
UPDATE yard SET epoch = greatest(epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint), restore_time = clock_timestamp()
RETURNING epoch

-- name: RestoreNewYard
UPDATE yard SET id = replace(gen_random_uuid()::text, '-', '')

-- name: RestoreDeposeLeader
-- A leader of before the restore, or of another one, had a lower epoch.
UPDATE leader SET holder = '', epoch = greatest(epoch + 1, $1::bigint), beat = beat + 1, lease_end = '-infinity'

-- name: RestoreEndLeases
UPDATE leases SET held = false, incarnation = incarnation || ' restored' WHERE held

-- name: RestoreLoseNodes
UPDATE nodes SET reachable = false, leave_time = NULL WHERE reachable

-- name: RestoreForgetLosses
-- Without it a LOST rank does not rejoin (MayRejoin).
UPDATE ranks SET failure = NULL WHERE state = 'LOST'

-- name: RestoreForgetLost
UPDATE ranks SET state = 'GONE' WHERE state = 'LOST'

-- name: RestoreEndRequests
UPDATE node_requests SET state = 'ENDED', why = 'the yard is a copy of another', change_time = clock_timestamp()
WHERE state <> 'ENDED'

-- name: RestoreRevokeToken
UPDATE access_tokens SET revoke_time = clock_timestamp() WHERE id = ANY ($1::text[]) AND revoke_time IS NULL RETURNING id

-- name: RestoreRevokeTokenFiles
INSERT INTO access_tokens (sha256, name, role, project, creator, create_time, revoke_time)
SELECT sha256, name, role, '', '', clock_timestamp(), clock_timestamp() FROM tokens WHERE left(sha256, 16) COLLATE "C" = ANY ($1::text[])
ON CONFLICT (sha256) DO NOTHING RETURNING id

-- name: RestoreRevokeNodeKey
UPDATE node_keys SET revoke_time = clock_timestamp(), revoked_by = 'a restore of the yard'
WHERE fingerprint = ANY ($1::text[]) AND revoke_time IS NULL RETURNING fingerprint

-- name: RestoreAllCredentials
SELECT 'token' AS kind, id FROM access_tokens WHERE revoke_time IS NULL
UNION ALL SELECT 'node key', fingerprint FROM node_keys WHERE revoke_time IS NULL

-- name: RestoreEndJoinTokens
-- How often they were used since the backup is not known.
UPDATE join_tokens SET revoke_time = clock_timestamp() WHERE revoke_time IS NULL AND expire_time > now() RETURNING id

-- name: RestoreNewestAudit
SELECT micros(max(time)) FROM audit
