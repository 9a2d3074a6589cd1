state, reason_code, reason_message, suspend_cause, version, attempt, restarts, step, update_time, not_before,
start_time, end_time, suspend_deadline, failure, newest_checkpoint_uri, losses, avoid_node, arithmetic,
feed_sequence
