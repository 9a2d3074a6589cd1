-- What stands in braces in the lists is put there: terms, made of constants of ours and quoted values, and times.

-- name: ListJobs
-- Each month's part is planned and bounded for itself, by what its own statistics know: a value that is frequent in
-- one month and absent in all later ones is found in none of those by an index, not by reading them in order.
SELECT {job_columns}, {slots_held}, s.spec, s.plan_summary
FROM (
  SELECT * FROM (
    (SELECT {lasting_columns}, {changing_columns} FROM jobs j
     WHERE (j.create_time, j.uid) < ({after}) {live_terms}
     ORDER BY j.create_time DESC, j.uid DESC LIMIT $1)
    {months}
  ) AS parts ORDER BY create_time DESC, uid DESC LIMIT $1
) AS j JOIN job_specs s ON s.job_uid = j.uid
ORDER BY j.create_time DESC, j.uid DESC

-- name: ListEndedJobs
UNION ALL
(SELECT {lasting_columns}, {changing_columns} FROM ended_jobs j
 WHERE (j.create_time, j.uid) < ({after}) AND j.create_time >= {from} AND j.create_time < {to} {ended_terms}
 ORDER BY j.create_time DESC, j.uid DESC LIMIT $1)

-- name: EndedMonths
-- Their first moments, newest first.
SELECT to_char(to_date(substr(c.relname, 12), 'YYYY_MM'), 'YYYY-MM-DD 00:00:00+00')
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'ended_jobs'::regclass AND c.relname ~ '^ended_jobs_[0-9]{4}_[0-9]{2}$' ORDER BY 1 DESC
