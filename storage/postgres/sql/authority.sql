-- The certificate authority of the yard.

-- name: FindAuthority
SELECT certificate, sealed_key FROM yard_authority

-- name: AddAuthority
INSERT INTO yard_authority (certificate, sealed_key) VALUES ($1, $2) ON CONFLICT DO NOTHING
