-- The filter's terms, made of constants of ours and quoted values, are put where {terms} stands.

-- name: ListJobs
SELECT {job_columns}, s.spec, s.plan_summary
FROM jobs j JOIN job_specs s ON s.job_uid = j.uid
WHERE (j.create_time, j.uid) < (coalesce(from_micros($1), 'infinity'::timestamptz), $2) {terms}
ORDER BY j.create_time DESC, j.uid DESC LIMIT $3
