n.name, n.uid, n.instance, l.incarnation, n.address, n.agent_version, n.labels::text AS labels,
n.slots::text AS slots, l.usage::text AS usage, l.disk_free_bytes, n.draining, n.reachable, l.beat, micros(l.lease_end) AS lease_end,
micros(n.create_time) AS create_time
