n.name, n.incarnation, n.address, n.agent_version, n.labels::text AS labels, n.slots::text AS slots,
n.usage::text AS usage, n.draining, n.reachable, micros(n.lease_end) AS lease_end, micros(n.create_time) AS create_time
