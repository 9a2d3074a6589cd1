a.job_uid, a.attempt, a.world_size, a.restore_step, a.restore_uri, a.restore_manifest_sha256,
micros(a.create_time) AS create_time,
r.rank, r.node, r.slots, r.state, r.outcome, r.acked_sequence, r.failure::text AS failure,
micros(r.gone_time) AS gone_time
