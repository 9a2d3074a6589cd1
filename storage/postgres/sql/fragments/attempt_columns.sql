r.job_uid, r.attempt, r.world_size, r.restore_step, r.restore_uri, r.restore_manifest_sha256, r.layout,
micros(r.create_time) AS create_time,
r.rank, r.node, r.slots, r.state, r.outcome, r.acked_sequence, r.failure::text AS failure,
micros(r.gone_time) AS gone_time, r.node_uid, r.node_instance, r.claim,
r.rank = 0 AND EXISTS (
  SELECT FROM (SELECT state FROM ranks WHERE job_uid = r.job_uid AND attempt < r.attempt OFFSET 0) AS l
  WHERE l.state = 'LOST') AS lost_before
