j.uid, j.project, j.job_id, j.creator, coalesce(j.request_id, '') AS request_id, j.labels::text AS labels,
j.priority, j.min_slots, j.max_slots, j.device, j.bytes_per_slot, j.total_steps, j.max_restarts,
j.backoff_us, micros(j.create_time) AS create_time, j.state, j.reason_code, j.reason_message,
j.suspend_cause, j.version, j.attempt, j.restarts, j.step, micros(j.update_time) AS update_time,
micros(j.not_before) AS not_before, micros(j.start_time) AS start_time, micros(j.end_time) AS end_time,
micros(j.suspend_deadline) AS suspend_deadline, j.failure::text AS failure, j.newest_checkpoint_uri,
j.losses, j.avoid_node, j.logical_ranks, j.resize::text AS resize, j.arithmetic_rule, j.arithmetic,
j.group_ranks, j.slot_step, j.most_slots, j.second_owner, j.layout
