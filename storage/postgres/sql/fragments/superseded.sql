EXISTS (SELECT FROM attempts a
        WHERE a.job_uid = m.job_uid AND a.attempt > m.attempt AND a.restore_step < m.step)
