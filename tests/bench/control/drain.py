"""A queue that is drained: jobs per second, rows written per job."""
import statistics
import time

from figures import NODES, SLOTS
from rows import SUBMITTED, clone, remove_queued, submit_one


def drain_once(bench, agents, template, tag, more_behind=0, reason=SUBMITTED):
    """Jobs per second from the first end to the last, of as many as `drained` says."""
    begun = agents.ask("stats")["finished"]
    clone(bench.rig, template, bench.sizes.drained + more_behind, tag, reason=reason)
    first = agents.ask(f"reach {begun + 64} 120")
    last = agents.ask(f"reach {begun + bench.sizes.drained} 300")
    if last["finished"] < begun + bench.sizes.drained:
        raise SystemExit(f"only {last['finished'] - begun} of {bench.sizes.drained} jobs ended in time")
    return (last["finished"] - first["finished"]) / (last["at"] - first["at"])


def reason_behind(bench, agents, template):
    """What the service tells whoever submits a job like `template` behind a long queue of them."""
    drain_once(bench, agents, template, "warm", bench.sizes.queued)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # others drain meanwhile, and are queued again
        told = bench.rig.sql("SELECT reason_code, reason_message FROM jobs WHERE state = 'QUEUED' AND device = 'CPU' "
                             "AND reason_code <> 'SUBMITTED' LIMIT 1")
        if told:
            return told.split("|", 1)
        if bench.rig.sql("SELECT count(*) < 100 FROM jobs WHERE state = 'QUEUED'") == "t":
            clone(bench.rig, template, bench.sizes.queued, f"told-{time.monotonic()}")
        time.sleep(0.02)
    raise SystemExit("no job was told why it waits behind others")


def rows_per_job(bench, agents, template, tag, reason):
    """Rows written per drained job, by table. What the clone wrote in place of a submission is what a submission
    writes."""
    before = bench.rig.rows_written()
    drain_once(bench, agents, template, tag, reason=reason)
    after = bench.rig.rows_written()
    return {table: (after[table] - before[table]) / bench.sizes.drained for table in after}


def drain(bench):
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    holder = rig.agents(1, 1, "gpu-", "CUDA", hold=True)
    agents = rig.agents(NODES, SLOTS, "cpu-")
    held = submit_one(rig, "CUDA")  # takes the only GPU and keeps it
    template = submit_one(rig, "CPU").uid
    agents.ask("reach 1 30")

    def none_queued():
        remove_queued(rig)
        bench.wait_until("all but the one that is held have ended", "SELECT count(*) = 1 FROM jobs")

    def others_queued(tag):
        none_queued()
        clone(rig, held.uid, sizes.queued, tag)
        bench.settle()

    reason = reason_behind(bench, agents, template)
    none_queued()
    per_table = rows_per_job(bench, agents, template, "rows", reason)
    others_queued("rows-other")
    queued_tables = rows_per_job(bench, agents, template, "rows-queued", reason)
    rates, late = {"empty": [], "other": [], "behind": []}, {}
    for turn in range(sizes.turns):  # each case beside the others: what changes on the machine meets all of them
        none_queued()
        rates["empty"].append(drain_once(bench, agents, template, f"empty-{turn}", reason=reason))
        late["alone"] = bench.note_lateness(agents)
        others_queued(f"other-{turn}")
        rates["other"].append(drain_once(bench, agents, template, f"beside-{turn}", reason=reason))
        late["beside"] = bench.note_lateness(agents)
        none_queued()
        rates["behind"].append(drain_once(bench, agents, template, f"behind-{turn}", sizes.queued, reason))
        late["behind"] = bench.note_lateness(agents)
    empty, other, behind = (statistics.median(rates[case]) for case in ("empty", "other", "behind"))
    shares = [statistics.median(rate / alone for rate, alone in zip(rates[case], rates["empty"]))
              for case in ("other", "behind")]
    bench.tell("drain_per_second", empty, f"{NODES * SLOTS} slots, nobody else queued")
    bench.tell("drain_queued_per_second", other, f"{sizes.queued} queued on other hardware, share {shares[0]:.3f}")
    bench.tell("drain_behind_per_second", behind, f"{sizes.queued} queued behind, share {shares[1]:.3f}")
    bench.tell("drain_queued_share", min(shares))
    bench.tell("updates_per_job", per_table["jobs"] + per_table["ended_jobs"],
              "rows of jobs written per job, its insert and its move into the history included")
    bench.tell("updates_per_job_all", sum(per_table.values()), "of all tables: " + ", ".join(
        f"{table} {rows:.2f}" for table, rows in sorted(per_table.items()) if rows >= 0.005))
    bench.tell("updates_per_job_queued", queued_tables["jobs"] + queued_tables["ended_jobs"], f"with {sizes.queued} queued")
    print(f"{'':>28}  {'':>12}  heartbeats: p99.9 {late['beside']['late_ms_p999']:.0f} ms beside, "
          f"{late['behind']['late_ms_p999']:.0f} ms behind")
    remove_queued(rig)
    agents.end()
    holder.end()
    rig.stop_server()
