uid, project, job_id, creator, request_id, labels, priority, min_slots, max_slots, device, bytes_per_slot,
total_steps, max_restarts, backoff_us, create_time, logical_ranks, resize, arithmetic_rule, group_ranks,
slot_step, most_slots, second_owner, layout
