(SELECT month_of(create_time) FROM job_specs WHERE job_uid = $1)
