id, name, role, project, creator, micros(create_time) AS create_time, micros(expire_time) AS expire_time,
micros(revoke_time) AS revoke_time
