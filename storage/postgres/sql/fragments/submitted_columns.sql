uid, project, job_id, creator, request_id, labels, priority, min_slots, max_slots, device, bytes_per_slot,
total_steps, max_restarts, backoff_us, create_time, update_time, state, reason_code, reason_message, suspend_cause,
version, attempt, restarts, step, newest_checkpoint_uri, feed_sequence, logical_ranks, arithmetic_rule, group_ranks,
slot_step, most_slots, second_owner
