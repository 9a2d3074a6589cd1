fingerprint, node, node_uid, pool, token_id, micros(join_time) AS join_time, micros(revoke_time) AS revoke_time,
revoked_by
