n.name, n.uid, n.instance, l.incarnation, n.address, n.agent_version, n.labels::text AS labels,
n.slots::text AS slots, l.usage::text AS usage, l.disk_free_bytes, l.health::text AS health,
n.draining, CASE WHEN n.leave_session = l.incarnation THEN micros(n.leave_time) END AS leave_time, n.reachable, l.beat, micros(l.lease_end) AS lease_end,
micros(n.create_time) AS create_time, n.cordon, micros(n.lifted_time) AS lifted_time, micros(n.boot_time) AS boot_time,
(SELECT coalesce(jsonb_agg(jsonb_build_object('job_uid', f.job_uid, 'job_id', f.job_id, 'attempt', f.attempt,
                   'category', f.category, 'time', micros(f.time), 'charged', f.charged) ORDER BY f.time), '[]')
 FROM node_failures f WHERE f.node = n.name)::text AS failures,
(SELECT coalesce(jsonb_agg(jsonb_build_object('job_uid', r.job_uid, 'attempt', r.attempt, 'rank', r.rank, 'slots', r.slots,
                   'uid', r.node_uid, 'instance', r.node_instance, 'claim', r.claim, 'time', micros(r.gone_time))
                 ORDER BY r.job_uid, r.attempt, r.rank), '[]')
 FROM ranks r WHERE r.node = n.name AND r.state = 'LOST')::text AS lost_ranks
