"""What a run of the benchmark measures: how much of each it asks for, and the figures that it found."""
import time

NODES, SLOTS = 8, 8


class Sizes:
    def __init__(self, reduced):
        self.queued = 4000 if reduced else 20000
        self.first_steps = 20 if reduced else 200
        self.drained = 150 if reduced else 2000      # per turn
        self.turns = 1 if reduced else 5
        self.submit_seconds = 1.5 if reduced else 5
        self.kills = 3 if reduced else 10
        self.idle_nodes = 100 if reduced else 1000
        self.idle_watchers = 200 if reduced else 2000
        self.idle_seconds = 4 if reduced else 30
        self.watched = 500 if reduced else 10000     # jobs, each with a watcher of its own
        self.watch_nodes = 10 if reduced else 100
        self.watch_rate = 500 if reduced else 5000   # events per second over all of them
        self.watch_seconds = 4 if reduced else 20
        self.listed = 20000 if reduced else 1000000
        self.pass_queued = 10000 if reduced else 100000
        self.metric_seconds = 5 if reduced else 60
        self.metric_steps = 100000 if reduced else 1000000  # of each long job
        self.metric_jobs = 2 if reduced else 10


class Bench:
    def __init__(self, rig, sizes):
        self.rig, self.sizes, self.figures = rig, sizes, {}
        self.late = []

    def tell(self, name, value, note=""):
        self.figures[name] = round(value, 4) if isinstance(value, float) else value
        shown = f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
        print(f"{name:>28}  {shown:>12}  {note}", flush=True)

    def note_lateness(self, agents):
        stats = agents.ask("stats")
        self.late.append((stats["late_ms_p999"], stats["late_ms_max"], stats["heartbeats"]))
        return stats

    def settle(self):
        """Until the scheduler has told every job why it waits."""
        self.wait_until("every job has been told why it waits",
                        "SELECT count(*) = 0 FROM jobs WHERE state = 'QUEUED' AND reason_code = 'SUBMITTED'")

    def wait_until(self, what, sql):
        deadline = time.monotonic() + 120
        while self.rig.sql(sql) != "t":
            if time.monotonic() > deadline:
                raise SystemExit(f"waited in vain until {what}")
            time.sleep(0.2)
