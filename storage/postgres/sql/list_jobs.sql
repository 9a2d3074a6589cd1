-- The filter's terms, made of constants of ours and quoted values, are put where {live_terms} and {ended_terms} stand.

-- name: ListJobs
SELECT {job_columns}, s.spec, s.plan_summary
FROM (
  (SELECT {lasting_columns}, {changing_columns} FROM jobs j
   WHERE (j.create_time, j.uid) < ({after}) {live_terms}
   ORDER BY j.create_time DESC, j.uid DESC LIMIT $1)
  UNION ALL
  (SELECT {lasting_columns}, {changing_columns} FROM ended_jobs j
   WHERE (j.create_time, j.uid) < ({after}) {ended_terms}
   ORDER BY j.create_time DESC, j.uid DESC LIMIT $1)
) AS j JOIN job_specs s ON s.job_uid = j.uid
ORDER BY j.create_time DESC, j.uid DESC LIMIT $1
