"""Jobs as rows: what is submitted, and long queues and ended jobs, cloned in SQL from one that was submitted."""
from yard import Api, json_format, jobs_pb, resources_pb

# Declares its data, which exists nowhere: nothing is read, and nothing trains.
SPEC = {
    "model": {"mlp": {"hidden": [32]}},
    "data": {"idx": {"train_images": "/nowhere/images", "train_labels": "/nowhere/labels", "height": 28, "width": 28,
                     "classes": 10}},
    "training": {"steps": 1000, "batch_size": 32},
    "optimizer": {"sgd": {}}, "schedule": {"learning_rate": 0.1},
}


def request_for(device, steps=1000):
    spec = json_format.ParseDict(dict(SPEC, resources={"device": device}, training=dict(SPEC["training"], steps=steps)),
                                 resources_pb.Job().spec)
    return jobs_pb.SubmitJobRequest(parent="projects/default", job=resources_pb.Job(spec=spec, labels={"team": "bench"}))


def submit_one(rig, device, steps=1000):
    api = Api(rig.address, (rig.folder / "admin").read_text().strip())
    job = api.job.SubmitJob(request_for(device, steps))
    api.close()
    return job


SUBMITTED = "SUBMITTED", "waits for the scheduler to look at it"


def clone(rig, uid, count, tag, ended=False, reason=SUBMITTED):
    """`count` jobs like the one with `uid`, younger than it, as their submission would have written them: the first item
    of their feeds has no row. `reason`: what they were told when they were submitted. `ended`: as the server has moved
    them into the history, one of each half a minute back, in partitions of their months: a million of them reach back
    almost a year. 98 of 100 succeeded, one failed, one was cancelled."""
    columns = rig.sql("SELECT attname FROM pg_attribute WHERE attrelid = 'jobs'::regclass AND attnum > 0 "
                      "AND NOT attisdropped ORDER BY attnum").split()
    of = {c: f"j.{c}" for c in columns}
    time = "now() + n * interval '1 microsecond'"
    of |= {"uid": f"md5('{tag}' || n)", "job_id": f"'{tag}-' || n", "request_id": "NULL", "attempt": "0", "step": "0",
           "restarts": "0", "version": "1", "state": "'QUEUED'", "reason_code": f"'{reason[0]}'",
           "reason_message": f"'{reason[1]}'", "suspend_cause": "'NONE'",
           "not_before": "NULL", "start_time": "NULL", "suspend_deadline": "NULL", "feed_sequence": "1",
           "create_time": time, "update_time": "now()", "left_state": "NULL", "end_time": "NULL",
           "changed": "pg_current_xact_id()"}
    table = "jobs"
    if ended:
        table, time = "ended_jobs", "now() - n * interval '30 seconds'"
        of |= {"priority": "n % 7", "create_time": time, "end_time": f"{time} + interval '20 seconds'",
               "labels": "jsonb_build_object('team', 'team-' || n % 50, 'run', 'run-' || n % 10000)",
               "state": "(ARRAY['SUCCEEDED', 'FAILED', 'CANCELLED'])[1 + (n % 100) / 98 + (n % 100) / 99]",
               "left_state": "(ARRAY['RUNNING', 'RUNNING', 'CANCELLING'])[1 + (n % 100) / 98 + (n % 100) / 99]"}
        of["label_pairs"] = f"label_pairs({of['labels']})"
        rig.sql(f"""SELECT make_month(parent, key, month)
            FROM (VALUES ('ended_jobs', 'create_time'), ('feed', 'month')) AS parents (parent, key),
                 (SELECT DISTINCT month_of(now() - n * interval '1 day') AS month
                  FROM generate_series(0, {count} / 2880 + 1) n) AS months""")
    either = " UNION ALL ".join(f"SELECT {', '.join(columns)} FROM {rows}" for rows in ("jobs", "ended_jobs"))
    rig.sql(f"""
        INSERT INTO {table} ({', '.join(of)}) SELECT {', '.join(of.values())}
        FROM ({either}) j, generate_series(1, {count}) n WHERE j.uid = '{uid}';
        INSERT INTO job_specs (job_uid, project, job_id, create_time, spec, plan_summary)
        SELECT j.uid, j.project, j.job_id, j.create_time, s.spec, s.plan_summary
        FROM job_specs s, generate_series(1, {count}) n JOIN {table} j ON j.uid = md5('{tag}' || n)
        WHERE s.job_uid = '{uid}';""")


def remove_queued(rig):
    """Locks them in the order in which the server does, so that neither waits for the other in a circle."""
    rig.sql("""WITH queued AS (SELECT uid FROM jobs WHERE state = 'QUEUED' ORDER BY uid FOR UPDATE),
                    gone AS (DELETE FROM jobs j USING queued q WHERE j.uid = q.uid RETURNING j.uid),
                    named AS (DELETE FROM job_specs s USING gone WHERE s.job_uid = gone.uid),
                    traced AS (INSERT INTO deleted_jobs (uid) SELECT uid FROM gone)
               DELETE FROM feed f USING gone WHERE f.job_uid = gone.uid""")
