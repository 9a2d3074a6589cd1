"""Random faults, several at a time, over a yard of three servers and four agents while short jobs run."""
import collections
import heapq
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from harm import fill_disk, send

INTERVAL = 1.0  # seconds between the beginnings of two faults
DISK = 400 << 20  # bytes of an agent's state directory, where mounting is allowed; with less it takes no work
ORPHAN_LIMIT_MS = 10000
COUNTED = ("jobs_wrong", "weights_differ", "values_differ", "metric_gaps", "metric_duplicates", "watch_missed",
           "double_runs", "double_slots", "processes_left")


def enter_own_mounts():
    """Starts this program again where it may mount small disks that nobody else sees, if that is permitted."""
    if "TRAINYARD_OWN_MOUNTS" in os.environ or os.geteuid() != 0:
        return
    permitted = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], stderr=subprocess.DEVNULL)
    os.environ["TRAINYARD_OWN_MOUNTS"] = "1" if permitted.returncode == 0 else ""
    if permitted.returncode == 0:
        sys.stdout.flush()
        os.execvp("unshare", ["unshare", "-m", sys.executable, *sys.argv])


class Counter(threading.Thread):
    """Looks all the time which processes hold a rank: two of one rank, or more than the slots of a node, at one moment."""

    def __init__(self, yard, slots=1):
        super().__init__(daemon=True)
        self.yard, self.slots, self.ending, self.looks = yard, slots, threading.Event(), 0
        self.double_runs, self.double_slots = set(), set()

    def run(self):
        while not self.ending.is_set():
            self.look()
            time.sleep(0.005)

    def look(self):
        self.looks += 1
        workers = self.yard.workers()
        runs = [pair for pair in itertools.combinations(workers, 2) if pair[0][1] == pair[1][1]]
        nodes = [tuple(w for w in workers if w[0] == node) for node in {w[0] for w in workers}]
        full = [ranks for ranks in nodes if len(ranks) > self.slots]
        if not runs and not full:
            return
        # /proc is read one process after the other: those that a second look finds again were there at one moment.
        again = set(self.yard.workers())
        self.double_runs.update(pair for pair in runs if again.issuperset(pair))
        self.double_slots.update(ranks for ranks in full if again.issuperset(ranks))

    def end(self):
        self.ending.set()
        self.join()


class Faults:
    """What can be broken, and how each is healed. A thing that is broken is left alone until then."""

    def __init__(self, yard, draw):
        self.yard, self.draw, self.broken, self.heals, self.count = yard, draw, set(), [], 0
        self.kinds = collections.Counter()
        self._order = itertools.count()

    def duration(self):
        """Mostly short; some outlast every lease."""
        return self.draw.uniform(0.05, 2) if self.draw.random() < 0.75 else self.draw.uniform(4, 16)

    def heal_later(self, thing, seconds, heal):
        self.broken.add(thing)
        heapq.heappush(self.heals, (time.monotonic() + seconds, next(self._order), thing, heal))

    def heal_due(self, everything=False):
        while self.heals and (everything or self.heals[0][0] <= time.monotonic()):
            _, _, thing, heal = heapq.heappop(self.heals)
            heal()
            self.broken.discard(thing)

    def strike(self):
        """One fault; False when what was drawn is not there or broken already."""
        kind = self.draw.choice(("kill", "kill", "stop", "stop", "cut", "cut", "disk", "restart"))
        happened = getattr(self, kind)()
        if happened:
            self.count += 1
            self.kinds[kind + " " + happened] += 1
        return happened

    def program(self):
        """("server", part) and the like, of those that nothing is wrong with."""
        what = self.draw.choice(("server", "agent", "worker", "postgres"))
        if what == "worker":
            workers = [w for w in self.yard.workers() if f"worker {w[2]}" not in self.broken]
            return (what, self.draw.choice(workers)) if workers else (None, None)
        if what == "postgres":
            return (None, None) if "postgres" in self.broken else (what, self.yard.store)
        part = self.draw.choice(self.yard.servers if what == "server" else self.yard.agents)
        return (None, None) if part.name in self.broken or not part.pid else (what, part)

    def kill(self):
        what, thing = self.program()
        if what == "worker":
            return what if send(thing[2], signal.SIGKILL) else None
        if what == "postgres":
            self.yard.store.stop("immediate")
            self.heal_later("postgres", self.duration(), self.yard.store.start)
        elif what is not None:
            thing.send(signal.SIGKILL)
        return what

    def stop(self):
        what, thing = self.program()
        if what == "worker":
            pid = thing[2]
            if not send(pid, signal.SIGSTOP):
                return None
            self.heal_later(f"worker {pid}", self.duration(), lambda: send(pid, signal.SIGCONT))
        elif what == "postgres":
            thing.freeze()
            self.heal_later("postgres", self.duration(), thing.thaw)
        elif what is not None:
            pid = thing.pid
            thing.send(signal.SIGSTOP)
            self.heal_later(thing.name, self.duration(), lambda: send(pid, signal.SIGCONT))
        return what

    def restart(self):
        what, thing = self.program()
        if what == "postgres":
            thing.stop("fast")
            self.heal_later("postgres", self.draw.uniform(0, 1), thing.start)
        elif what in ("server", "agent"):
            thing.send(signal.SIGTERM)
        else:
            return None
        return what

    def cut(self):
        what = self.draw.choice(("server-store", "agent-server", "agent-servers"))
        if what == "server-store":
            links = self.draw.choice(self.yard.store_links)
        elif what == "agent-server":
            links = [self.draw.choice(self.draw.choice(self.yard.agent_links))]
        else:
            links = self.draw.choice(self.yard.agent_links)
        if any(link in self.broken for link in links):
            return None
        state = self.draw.choice(("stalled", "cut"))
        seconds = self.duration()
        for link in links:
            link.set(state)
            self.heal_later(link, seconds, lambda link=link: link.set("open"))
        return what

    def disk(self):
        if not self.yard.small_disks:
            return None
        folder = self.draw.choice(self.yard.state_dirs)
        full = pathlib.Path(folder, "full")
        if ("disk", folder) in self.broken:
            return None
        fill_disk(full)
        self.heal_later(("disk", folder), self.draw.uniform(0.5, 6), full.unlink)
        return "agent"


class Campaign:
    def __init__(self, yard, draw, faults, steps):
        from yard import gpt, text_file
        self.yard, self.wanted = yard, faults
        self.steps = steps
        self.spec = gpt(text_file(yard.dir), steps, every_steps=max(1, steps // 10))
        self.spec["retry"]["max_restarts"] = 1000
        self.faults = Faults(yard, draw)
        self.names, self.watchers, self.live = [], {}, []
        self.figures = collections.Counter()
        self.wrong = []

    def undisturbed(self):
        from yard import resources_pb, values_of
        name = self.yard.submit(self.spec).name
        self.yard.wait_for(name, resources_pb.SUCCEEDED, 120)
        self.digest, self.values = self.yard.final_digest(name), values_of(self.yard.metrics(name))
        assert self.digest and sorted(self.values) == list(range(1, self.steps + 1)), "the undisturbed job is not whole"

    def run(self):
        """Faults at a steady pace, and jobs spread over them, submitted and watched while things break."""
        jobs = max(20, self.wanted // 5)
        submitter = threading.Thread(target=self.submit_all, args=(jobs,), daemon=True)
        submitter.start()
        due = time.monotonic()
        while self.faults.count < self.wanted:
            self.faults.heal_due()
            if time.monotonic() < due:
                time.sleep(0.02)
                continue
            if self.faults.strike():
                due += INTERVAL
                if self.faults.count % 50 == 0:
                    print(f"{self.faults.count} faults, {len(self.names)} jobs submitted", flush=True)
        self.faults.heal_due(everything=True)
        submitter.join(120)
        assert len(self.names) == jobs, f"{len(self.names)} of {jobs} jobs were submitted although everything is healed"

    def submit_all(self, jobs):
        from replicas import MovingWatcher
        for number in range(jobs):
            # Job `number` is submitted once its share of the faults, less eight, has happened.
            while self.faults.count < self.wanted * number // jobs - 8:
                time.sleep(0.05)
            name = self.yard.submit(self.spec).name
            self.names.append(name)
            self.watchers[name] = MovingWatcher(self.yard, name)

    def judge_all(self):
        from yard import eventually
        begin = time.monotonic()
        for name in self.names:
            left = max(1, 180 - (time.monotonic() - begin))
            try:
                job = eventually(lambda: self.ended(name), left, f"{name} to end")
            except AssertionError as error:
                self.figures["jobs_wrong"] += 1
                self.wrong.append(f"{error}: {self.yard.get(name)}")
                continue
            self.judge(name, job)

    def ended(self, name):
        from yard import ENDED
        job = self.yard.get(name)
        return job if job.state in ENDED else None

    def judge(self, name, job):
        from yard import resources_pb, values_of, without_timings
        found = collections.Counter()
        found["jobs_wrong"] = job.state != resources_pb.SUCCEEDED
        found["weights_differ"] = self.yard.final_digest(name) != self.digest
        points = self.yard.metrics(name)
        counted = collections.Counter(p.point.step for p in points)
        found["metric_gaps"] = sum(1 for step in range(1, self.steps + 1) if step not in counted)
        found["metric_duplicates"] = sum(n - 1 for n in counted.values())
        found["values_differ"] = values_of(points) != self.values
        watcher = self.watchers[name]
        found["watch_missed"] = (0 if watcher.join(30) else 1) + watcher.missed()
        found["values_differ"] += {s: without_timings(v) for s, v in watcher.series().items()} != self.values
        self.figures["attempts"] += job.attempt
        found = +found
        self.figures.update(found)
        if found:
            self.wrong.append(f"{name}: {dict(found)} {watcher.error or ''}\n    {job.state} {job.reason.code}: "
                              f"{job.reason.message}")


def run(faults, seed, steps, random):
    from replicas import Replicas
    from yard import eventually
    small_disks = DISK if os.environ.get("TRAINYARD_OWN_MOUNTS") else 0
    begin = time.monotonic()
    yard = Replicas(orphan_limit_ms=ORPHAN_LIMIT_MS, small_disks=small_disks)
    with yard:
        if not small_disks:
            print("mounting is not permitted here: no disk is filled")
        campaign = Campaign(yard, random.Random(seed), faults, steps)
        campaign.undisturbed()
        counter = Counter(yard)
        counter.start()
        try:
            campaign.run()
            campaign.judge_all()
            try:
                # Orphans end after their limit, which counts from when their agent was last heard of.
                eventually(lambda: not yard.workers(), ORPHAN_LIMIT_MS / 1000 + 20)
            except AssertionError:
                campaign.figures["processes_left"] += len(yard.workers())
                campaign.wrong.append(f"left: {yard.workers()}")
        finally:
            counter.end()
        if campaign.wrong or counter.double_runs or counter.double_slots:
            print(yard.logs())
    campaign.figures["processes_left"] += len(yard.processes())
    campaign.figures["double_runs"] = len(counter.double_runs)
    campaign.figures["double_slots"] = len(counter.double_slots)
    for double in counter.double_runs | counter.double_slots:
        campaign.wrong.append(f"at one moment: {double}")
    print(*campaign.wrong, sep="\n")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(campaign.faults.kinds.items())))
    print(f"seed {seed}; {campaign.figures['attempts']} attempts; processes counted {counter.looks} times; "
          f"{time.monotonic() - begin:.0f} s")
    figures = {"faults": campaign.faults.count, "jobs": len(campaign.names)}
    figures.update({name: int(campaign.figures[name]) for name in COUNTED})
    print(json.dumps(figures))
    return any(figures[name] for name in COUNTED)
