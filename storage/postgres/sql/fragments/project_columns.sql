name, unix_user, max_slots, max_jobs, micros(update_time) AS update_time
