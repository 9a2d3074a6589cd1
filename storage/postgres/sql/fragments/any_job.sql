SELECT {job_columns}, {slots_held}, s.spec, s.plan_summary FROM s JOIN jobs j ON j.uid = s.job_uid
UNION ALL
SELECT {job_columns}, NULL, s.spec, s.plan_summary
FROM s JOIN ended_jobs j ON j.uid = s.job_uid AND j.create_time = s.create_time
