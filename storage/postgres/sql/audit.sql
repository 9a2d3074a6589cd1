-- The audit.

-- name: AppendAudit
INSERT INTO audit (chain, sequence, time, principal, credential, source, method, resource, outcome, detail, count, digest)
SELECT u.chain, u.sequence, from_micros(u.time), u.principal, u.credential, u.source, u.method, u.resource, u.outcome,
       u.detail, u.count, u.digest
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::text[], $11::bigint[], $12::text[])
  AS u (chain, sequence, time, principal, credential, source, method, resource, outcome, detail, count, digest)
ON CONFLICT (chain, sequence) DO NOTHING

-- name: ListAuditByChain
SELECT {audit_columns} FROM audit WHERE (chain, sequence) > ($1, $2::bigint) ORDER BY chain, sequence LIMIT $3

-- name: ListAuditByTime
SELECT {audit_columns} FROM audit WHERE (time, chain, sequence) < (from_micros($1), $2, $3::bigint)
ORDER BY audit.time DESC, chain DESC, sequence DESC LIMIT $4

-- name: ListAuditOfPrincipal
SELECT {audit_columns} FROM audit WHERE principal = $5 AND (time, chain, sequence) < (from_micros($1), $2, $3::bigint)
ORDER BY audit.time DESC, chain DESC, sequence DESC LIMIT $4
