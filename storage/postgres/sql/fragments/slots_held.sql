CASE WHEN j.state IN ('STARTING', 'RUNNING', 'SUSPENDING', 'CANCELLING')
     THEN (SELECT world_size FROM ranks WHERE job_uid = j.uid AND attempt = j.attempt AND rank = 0) END AS slots
