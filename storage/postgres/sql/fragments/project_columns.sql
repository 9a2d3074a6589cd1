name, unix_user, micros(update_time) AS update_time
