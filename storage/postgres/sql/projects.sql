-- Projects, as far as admins have said something of them.

-- name: SetProject
-- NULL: it stays as it is; -1 for a limit: none.
INSERT INTO projects AS p (name, unix_user, max_slots, max_jobs, update_time)
VALUES ($1, coalesce($2, ''), nullif($3::integer, -1), nullif($4::integer, -1), clock_timestamp())
ON CONFLICT (name) DO UPDATE SET
  unix_user = coalesce($2, p.unix_user),
  max_slots = CASE WHEN $3::integer IS NULL THEN p.max_slots ELSE excluded.max_slots END,
  max_jobs = CASE WHEN $4::integer IS NULL THEN p.max_jobs ELSE excluded.max_jobs END,
  update_time = excluded.update_time
RETURNING {project_columns}

-- name: FindProject
SELECT {project_columns} FROM projects WHERE name = $1

-- name: ProjectsWithJobLimits
SELECT name FROM projects WHERE max_jobs IS NOT NULL

-- name: LockJobLimits
-- Held to the end of the transaction: nobody else adds jobs to these projects meanwhile.
SELECT name, max_jobs FROM projects WHERE name = ANY ($1::text[]) AND max_jobs IS NOT NULL ORDER BY name FOR UPDATE

-- name: CountLiveJobs
-- Of a project, up to $2 of them.
SELECT count(*) FROM (SELECT FROM jobs WHERE project = $1 LIMIT $2) AS live

-- name: ListProjects
SELECT {project_columns} FROM projects WHERE name > $1 ORDER BY name LIMIT $2
