-- API tokens.

-- name: AddToken
INSERT INTO tokens (sha256, name, role) VALUES ($1, $2, $3)
ON CONFLICT (sha256) DO UPDATE SET name = excluded.name, role = excluded.role

-- name: CreateToken
INSERT INTO access_tokens (sha256, name, role, project, creator, create_time, expire_time)
SELECT $1, $2, $3, $4, $5, c.now, c.now + $6::bigint * interval '1 microsecond' FROM (SELECT clock_timestamp() AS now) AS c
ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256
RETURNING {token_columns}

-- name: ForgetTokens
-- But for those that a server would bring back.
DELETE FROM access_tokens a WHERE least(a.expire_time, a.revoke_time) < now() - $1::bigint * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM tokens t WHERE t.sha256 = a.sha256 OFFSET 0)

-- name: ListTokens
SELECT {token_columns} FROM access_tokens WHERE id > $1 ORDER BY id LIMIT $2

-- name: ListTokensOfProject
SELECT {token_columns} FROM access_tokens WHERE project = $3 AND id > $1 ORDER BY id LIMIT $2

-- name: ListTokenFiles
SELECT left(t.sha256, 16) COLLATE "C" AS id, t.name, t.role, '' AS project, '' AS creator, NULL::bigint AS create_time,
       NULL::bigint AS expire_time, NULL::bigint AS revoke_time
FROM tokens t
WHERE left(t.sha256, 16) COLLATE "C" > $1 AND NOT EXISTS (SELECT FROM access_tokens a WHERE a.sha256 = t.sha256)
ORDER BY 1 LIMIT $2

-- name: RevokeToken
UPDATE access_tokens SET revoke_time = coalesce(revoke_time, clock_timestamp())
WHERE id = $1 AND ($2 = '' OR project = $2) RETURNING {token_columns}

-- name: RevokeTokenFile
INSERT INTO access_tokens (sha256, name, role, project, creator, create_time, revoke_time)
SELECT sha256, name, role, '', '', clock_timestamp(), clock_timestamp() FROM tokens WHERE left(sha256, 16) COLLATE "C" = $1
ON CONFLICT (sha256) DO UPDATE SET revoke_time = coalesce(access_tokens.revoke_time, clock_timestamp())
RETURNING {token_columns}

-- name: FindToken
SELECT name, role, project FROM access_tokens
WHERE sha256 = $1 AND revoke_time IS NULL AND (expire_time IS NULL OR expire_time > now())
UNION ALL
SELECT name, role, '' FROM tokens WHERE sha256 = $1 AND NOT EXISTS (SELECT FROM access_tokens WHERE sha256 = $1)

-- name: FindEndedTokens
-- OFFSET keeps the planner from reading whole tables for it.
SELECT u.sha256 FROM unnest($1::text[]) AS u (sha256)
WHERE NOT EXISTS (SELECT FROM access_tokens a WHERE a.sha256 = u.sha256 AND a.revoke_time IS NULL
                    AND (a.expire_time IS NULL OR a.expire_time > now()) OFFSET 0)
  AND NOT (EXISTS (SELECT FROM tokens t WHERE t.sha256 = u.sha256 OFFSET 0)
           AND NOT EXISTS (SELECT FROM access_tokens a WHERE a.sha256 = u.sha256 OFFSET 0))
