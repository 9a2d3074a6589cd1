node, pool, state, engine_id, engine_words, why, failed, proven_gone, micros(create_time) AS create_time,
micros(change_time) AS change_time
