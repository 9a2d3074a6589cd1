-- API tokens.

-- name: AddToken
INSERT INTO tokens (sha256, name, role) VALUES ($1, $2, $3)
ON CONFLICT (sha256) DO UPDATE SET name = excluded.name, role = excluded.role

-- name: FindToken
SELECT name, role FROM tokens WHERE sha256 = $1

-- name: RemoveToken
DELETE FROM tokens WHERE sha256 = $1
