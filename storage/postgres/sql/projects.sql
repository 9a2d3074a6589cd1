-- Projects, as far as admins have said something of them.

-- name: SetProject
INSERT INTO projects (name, unix_user, update_time) VALUES ($1, $2, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET unix_user = excluded.unix_user, update_time = excluded.update_time
RETURNING {project_columns}

-- name: FindProject
SELECT {project_columns} FROM projects WHERE name = $1

-- name: ListProjects
SELECT {project_columns} FROM projects WHERE name > $1 ORDER BY name LIMIT $2
