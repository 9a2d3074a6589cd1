"""What a yard costs that stands: many watchers, many nodes, a long queue."""
import time

from rows import clone, remove_queued, submit_one


def watchers(bench):
    """A watcher of each of many running jobs, whose ranks report points at a steady rate."""
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    slots = -(-sizes.watched // sizes.watch_nodes)
    agents = rig.agents(sizes.watch_nodes, slots, "cpu-", "CPU", hold=True)
    template = submit_one(rig, "CPU").uid
    clone(rig, template, sizes.watched - 1, "watched")
    deadline = time.monotonic() + 180
    while int(rig.sql("SELECT count(*) FROM jobs WHERE state = 'RUNNING'")) < sizes.watched:
        if time.monotonic() > deadline:
            raise SystemExit("the jobs that are to be watched do not start")
        time.sleep(0.2)
    names = [f"projects/default/jobs/{job_id}" for job_id in
             rig.sql("SELECT job_id FROM jobs WHERE state = 'RUNNING'").split()]
    before_kb = rig.resident_kb()
    watchers = rig.watch(names, sizes.watched, 100)
    seen_all(bench, watchers, agents.ask(f"emit {sizes.watch_rate} 1"))  # warm
    agents.ask("stats")
    committed = int(rig.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'yard'"))
    used, began = rig.cpu_seconds(), time.monotonic()
    emitted = agents.ask(f"emit {sizes.watch_rate} {sizes.watch_seconds}")
    used, took = rig.cpu_seconds() - used, time.monotonic() - began
    committed = int(rig.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'yard'")) - committed
    seen = seen_all(bench, watchers, emitted)
    late = bench.note_lateness(agents)
    bench.tell("watch_p99_ms", seen["late_ms_p99"],
              f"from the agent to the client, {sizes.watched} watchers of a job each; p50 {seen['late_ms_p50']:.0f}, "
              f"longest {seen['late_ms_max']:.0f}")
    bench.tell("watch_events_per_second", emitted["stored"] / emitted["seconds"],
              f"stored; {committed / took:.0f} transactions/s, {used / took:.2f} cores of server and PostgreSQL, "
              f"heartbeats p99.9 {late['late_ms_p999']:.0f} ms")
    bench.tell("watch_server_mb", rig.resident_kb() / 1024, f"resident, {before_kb / 1024:.0f} before the watchers came")
    watchers.end()
    agents.end()
    rig.stop_server()


def seen_all(bench, watchers, emitted):
    """What the watchers say once each point that was sent has reached its watcher, or ten seconds have gone."""
    seen = watchers.ask(f"{emitted['sent']} 10")
    if emitted["stored"] != emitted["sent"] or seen["points"] != emitted["sent"] or seen["gaps"]:
        raise SystemExit(f"{emitted['sent']} points were sent, {emitted['stored']} stored, {seen['points']} seen, "
                         f"with {seen['gaps']} gaps")
    return seen


def idling(bench):
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    agents = rig.agents(sizes.idle_nodes, 1, "idle-", "CPU", hold=True)
    holder = rig.agents(1, 1, "gpu-", "CUDA", hold=True)
    held = submit_one(rig, "CUDA")
    clone(rig, held.uid, sizes.queued, "idle")
    bench.settle()
    names = [f"projects/default/jobs/idle-{i + 1}" for i in range(sizes.idle_watchers)]
    watchers = rig.watch(names, sizes.idle_watchers, 20)
    time.sleep(1 if sizes.idle_seconds < 10 else 10)  # what the beginning left to do is not idling
    agents.ask("stats")
    before, began = rig.cpu_seconds(), time.monotonic()
    transactions = int(rig.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'yard'"))
    time.sleep(sizes.idle_seconds)
    took = time.monotonic() - began
    cores = (rig.cpu_seconds() - before) / took
    rate = (int(rig.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'yard'")) - transactions) / took
    late = bench.note_lateness(agents)
    bench.tell("idle_cores", cores, f"{sizes.queued} queued, {sizes.idle_nodes} nodes, {sizes.idle_watchers} watchers: "
                                   f"{rate:.0f} transactions/s, heartbeats p99.9 {late['late_ms_p999']:.0f} ms")
    watchers.end()
    agents.end()
    holder.end()
    remove_queued(rig)
    rig.stop_server()
