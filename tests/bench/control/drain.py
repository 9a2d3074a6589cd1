"""A queue that is drained: jobs per second, rows written per job."""
import statistics

from figures import NODES, SLOTS
from rows import clone, remove_queued, submit_one


def drain_once(bench, agents, template, tag, more_behind=0):
    """Jobs per second from the first end to the last, of as many as `drained` says."""
    begun = agents.ask("stats")["finished"]
    clone(bench.rig, template, bench.sizes.drained + more_behind, tag)
    first = agents.ask(f"reach {begun + 64} 120")
    last = agents.ask(f"reach {begun + bench.sizes.drained} 300")
    if last["finished"] < begun + bench.sizes.drained:
        raise SystemExit(f"only {last['finished'] - begun} of {bench.sizes.drained} jobs ended in time")
    return (last["finished"] - first["finished"]) / (last["at"] - first["at"])


def drain(bench):
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    holder = rig.agents(1, 1, "gpu-", "CUDA", hold=True)
    agents = rig.agents(NODES, SLOTS, "cpu-")
    held = submit_one(rig, "CUDA")  # takes the only GPU and keeps it
    template = submit_one(rig, "CPU").uid
    agents.ask("reach 1 30")
    drain_once(bench, agents, template, "warm")
    rates = {"empty": [], "other": [], "behind": []}
    before = rig.rows_written()
    for turn in range(sizes.turns):
        rates["empty"].append(drain_once(bench, agents, template, f"empty-{turn}"))
    after = rig.rows_written()
    # What the clone wrote in place of a submission is what a submission writes.
    jobs = sizes.turns * sizes.drained
    per_table = {table: (after[table] - before[table]) / jobs for table in after}
    bench.note_lateness(agents)
    clone(rig, held.uid, sizes.queued, "other")
    bench.settle()
    before = rig.rows_written()
    for turn in range(sizes.turns):
        rates["other"].append(drain_once(bench, agents, template, f"other-{turn}"))
    after = rig.rows_written()
    queued_tables = {table: (after[table] - before[table]) / jobs for table in after}
    late = bench.note_lateness(agents)
    for turn in range(sizes.turns):
        remove_queued(rig)
        bench.wait_until("all but the one that is held have ended", "SELECT count(*) = 1 FROM jobs")
        rates["behind"].append(drain_once(bench, agents, template, f"behind-{turn}", sizes.queued))
    late_behind = bench.note_lateness(agents)
    empty, other, behind = (statistics.median(rates[case]) for case in ("empty", "other", "behind"))
    bench.tell("drain_per_second", empty, f"{NODES * SLOTS} slots, nobody else queued")
    bench.tell("drain_queued_per_second", other, f"{sizes.queued} queued on other hardware")
    bench.tell("drain_behind_per_second", behind, f"{sizes.queued} queued behind")
    bench.tell("drain_queued_share", min(other, behind) / empty)
    bench.tell("updates_per_job", per_table["jobs"] + per_table["ended_jobs"],
              "rows of jobs written per job, its insert and its move into the history included")
    bench.tell("updates_per_job_all", sum(per_table.values()), "of all tables: " + ", ".join(
        f"{table} {rows:.2f}" for table, rows in sorted(per_table.items()) if rows >= 0.005))
    bench.tell("updates_per_job_queued", queued_tables["jobs"] + queued_tables["ended_jobs"], f"with {sizes.queued} queued")
    print(f"{'':>28}  {'':>12}  heartbeats: p99.9 {late['late_ms_p999']:.0f} ms beside, "
          f"{late_behind['late_ms_p999']:.0f} ms behind")
    remove_queued(rig)
    agents.end()
    holder.end()
    rig.stop_server()
