"""What was, read back: lists of ended jobs, metrics and their curves."""
import statistics
import time

from rows import clone, submit_one
from yard import Api, run_services_pb as services_pb


def lists(bench):
    """Frequent and rare values, orders, and what nothing has, over a year of ended jobs; then pairs of them. Two values
    that are frequent, and which no job has both, are not among them: see storage/README.md."""
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    template = submit_one(rig, "CPU").uid
    clone(rig, template, sizes.listed, "ended", ended=True)
    rig.sql("VACUUM ANALYZE")
    frequent, rare, team = "state = SUCCEEDED", "state = FAILED", 'labels.team = "team-7"'
    one = ["", frequent, rare, "state = RUNNING", "state != SUCCEEDED", 'job_id = "ended-77"', 'job_id = "absent"',
           'job_id != "ended-77"', "priority = 3", "priority = 99", "priority != 3", "priority >= 5", "priority > 6",
           "priority < 0", team, 'labels.run = "run-77"', 'labels.team = "absent"', 'labels.absent = "a"',
           'labels.team != "team-7"', 'labels.absent != "a"']
    two = [f"{rare} AND {team}", f"{rare} AND priority = 3", f"{frequent} AND priority = 99", f"{team} AND priority = 3",
           f'{team} AND labels.run = "run-77"', f'{team} AND labels.run = "run-57"', f"{frequent} AND {team}",
           f'{frequent} AND labels.run = "run-77"', "priority >= 2 AND priority < 3", f"{rare} AND priority < 0",
           f'{team} AND job_id = "ended-77"', "state = CANCELLED AND priority >= 5"]
    for name, cases in (("list_ms", one), ("list_two_ms", two)):
        times = {case: rig.call("list", "--filter", case, "--page-size", 50, "--calls", 5)["p50_ms"] for case in cases}
        bench.tell(name, max(times.values()), f"slowest of {len(cases)}, {sizes.listed} ended jobs: " + ", ".join(
            f"{case or 'none'} {ms:.1f}" for case, ms in sorted(times.items(), key=lambda item: -item[1])[:6]))
    rig.stop_server()


def stored_bytes(bench):
    """Of heads and chunks, their indexes, roll-ups and free space included."""
    return int(bench.rig.sql(
        "SELECT sum(pg_total_relation_size(relid)) FROM (SELECT relid FROM pg_partition_tree('metric_heads') "
        "UNION SELECT relid FROM pg_partition_tree('metric_chunks')) t"))


def metrics(bench):
    """Values that were acknowledged, and so are durable, per second, while chunks and roll-ups are made of them;
    then curves of long jobs. One of these reports through the server, the others are copies of its rows in SQL:
    the same bytes under other jobs."""
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    template = submit_one(rig, "CPU", 10**9)
    clone(rig, template.uid, 199, "rank")
    told = rig.call("metrics", "--nodes", 25, "--slots", 8, "--seconds", sizes.metric_seconds)
    size = stored_bytes(bench)
    held = int(rig.sql("SELECT sum(points) FROM (SELECT points FROM metric_chunks WHERE split = -1 "
                       "UNION ALL SELECT points FROM metric_heads) t"))
    if held * 10 != told["values"]:
        raise SystemExit(f"{told['values']} values were acknowledged and {held * 10} are stored")
    levels = rig.sql("SELECT string_agg(level || ': ' || n, ', ' ORDER BY level) FROM (SELECT level, "
                     "count(DISTINCT (job_uid, first_sequence)) n FROM metric_chunks GROUP BY level) t")
    bench.tell("metric_values_per_second", told["values_per_second"], f"{told['ranks']} ranks, {told['seconds']:.0f} s, "
              f"chunks by level {levels}")
    bench.tell("metric_bytes_per_value", size / told["values"], f"{told['values']} values in {size / 1e6:.0f} MB")
    rig.stop_server()
    rig.sql("TRUNCATE jobs, ended_jobs, job_specs, ranks, feed, checkpoints, metric_heads, "
            "metric_chunks CASCADE")
    rig.start_server()
    curves(bench)
    rig.stop_server()


def curves(bench):
    rig, sizes = bench.rig, bench.sizes
    source = submit_one(rig, "CPU", 10**9)
    rig.call("metrics", "--nodes", 1, "--slots", 1, "--points", 1000, "--steps", sizes.metric_steps)
    clone(rig, source.uid, sizes.metric_jobs - 1, "curve", ended=True)
    for table in ("metric_heads", "metric_chunks"):
        columns = rig.sql(f"SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = "
                          f"'{table}'::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'job_uid'")
        rig.sql(f"INSERT INTO {table} (job_uid, {columns}) SELECT md5('curve' || n), {columns} FROM {table}, "
                f"generate_series(1, {sizes.metric_jobs - 1}) n WHERE job_uid = '{source.uid}'")
    rig.sql("VACUUM ANALYZE; CHECKPOINT")
    api = Api(rig.address, (rig.folder / "admin").read_text().strip())
    names = [source.name] + [f"projects/default/jobs/curve-{n}" for n in range(1, sizes.metric_jobs)]
    one, all_names = [], []
    for turn in range(20):
        for times, wanted in ((one, ["loss"]), (all_names, [])):
            request = services_pb.QueryMetricsRequest(job=names[turn % len(names)], buckets=1000, names=wanted)
            began = time.monotonic()
            answer = api.metric.QueryMetrics(request)
            times.append(1000 * (time.monotonic() - began))
            if any(sum(curve.counts) != sizes.metric_steps or len(curve.counts) != 1000 for curve in answer.curves):
                raise SystemExit("a curve does not hold every point once")
    api.close()
    stored = sizes.metric_jobs * sizes.metric_steps * 10
    bench.tell("query_ms", statistics.median(one), f"1000 buckets of {sizes.metric_steps} steps, {stored} values "
              f"stored in {stored_bytes(bench) / 1e6:.0f} MB; slowest of 20: {max(one):.1f} ms")
    bench.tell("query_all_ms", statistics.median(all_names), f"of all ten metrics at once; slowest {max(all_names):.1f} ms")
