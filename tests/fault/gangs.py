"""Faults of gangs: jobs that train on several ranks over several nodes while ranks, agents, the server, links, disks and
strangers misbehave. Every job must succeed with the bits of one that trained undisturbed on a single slot."""
import collections
import dataclasses
import heapq
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

from gang_yard import has_own_machine, make_yard, segments_left
from harm import fill_disk, send

NODES, SLOTS = 3, 2
JOBS_AT_ONCE = 2
RANKS = (4, 2, 3)  # of one job after the other
LOGICAL_RANKS = 4
WATCHDOG = 3  # seconds, parallel.progress_timeout_seconds
ALONE = WATCHDOG + 1  # seconds after which a fault that is healed has no more consequences of its own
SAVE_EVERY = 80  # steps
# Within so many seconds after a rank was killed or stopped, its attempt must have ended: the watchdog, and what a busy
# machine takes to notice and to stop the other ranks.
BOUND = {"kill": 6, "stop": WATCHDOG + 6}
# So long a rank that is stopped is not killed, since it might leave its state (parallel.second_owner).
TIME_TO_NOTICE = 10
KINDS = ("kill", "kill", "kill_several", "stop", "stop", "agent", "server", "save", "cut", "cut", "cut_control", "disk",
         "pause", "liar")
LIES = ("noise", "silent", "secret", "version", "listen")
AGAIN = object()  # what a heal returns that has to be tried once more
COUNTED = ("jobs_wrong", "weights_differ", "values_differ", "watch_missed", "failures_unnamed", "late_ends",
           "double_runs", "double_slots", "processes_left", "segments_left")


@dataclasses.dataclass
class Fault:
    kind: str
    began: float  # time.time()
    until: float = 0  # when it is healed
    ranks: list = dataclasses.field(default_factory=list)  # (name, node) of those that it must end


class Faults:
    """What can be broken, and how each is healed. A thing that is broken is left alone until then."""

    def __init__(self, yard, draw, jobs):
        self.yard, self.draw, self.jobs = yard, draw, jobs
        self.broken, self.heals, self.count, self.kinds = set(), [], 0, collections.Counter()
        self.log = []
        self._order = itertools.count()

    def heal_later(self, thing, seconds, heal):
        self.broken.add(thing)
        self.latest.until = time.time() + seconds
        heapq.heappush(self.heals, (time.monotonic() + seconds, next(self._order), thing, heal))

    def heal_due(self, everything=False):
        while self.heals and (everything or self.heals[0][0] <= time.monotonic()):
            _, _, thing, heal = heapq.heappop(self.heals)
            if heal() is AGAIN:
                heapq.heappush(self.heals, (time.monotonic() + 0.2, next(self._order), thing, heal))
                time.sleep(0.01)
                continue
            self.broken.discard(thing)

    def duration(self):
        """Some are over before anybody notices, some outlast the watchdog, a few the leases."""
        chance = self.draw.random()
        return (self.draw.uniform(0.05, 2) if chance < 0.5 else
                self.draw.uniform(WATCHDOG + 0.5, 7) if chance < 0.9 else self.draw.uniform(12, 15))

    def strike(self, kinds=KINDS):
        """One fault; False when what was drawn is not there or broken already."""
        kind = self.draw.choice(kinds)
        # A third of them while ranks meet.
        if kind in ("kill", "stop", "cut") and self.draw.random() < 0.33 and not self.jobs.wait_for_meeting(2):
            return False
        self.latest = Fault(kind, time.time())
        if not getattr(self, kind)(self.latest.ranks):
            return False
        self.latest.until = max(self.latest.until, time.time())
        self.count += 1
        self.kinds[kind] += 1
        self.log.append(self.latest)
        return True

    def ranks(self):
        """(node, name, pid) of the ranks that nothing is wrong with."""
        return [w for w in self.yard.workers() if f"rank {w[2]}" not in self.broken]

    def kill(self, struck):
        ranks = self.ranks()
        if not ranks:
            return False
        node, name, pid = self.draw.choice(ranks)
        struck.append((name, node))
        return send(pid, signal.SIGKILL)

    def kill_several(self, struck):
        gangs = collections.defaultdict(list)
        for node, name, pid in self.ranks():
            gangs[name.rsplit(".", 1)[0]].append((node, name, pid))
        gangs = [gang for gang in gangs.values() if len(gang) > 1]
        if not gangs:
            return False
        gang = self.draw.choice(gangs)
        for node, name, pid in self.draw.sample(gang, self.draw.randint(2, len(gang))):
            struck.append((name, node))
            send(pid, signal.SIGKILL)
        return True

    def stop(self, struck):
        ranks = self.ranks()
        if not ranks:
            return False
        node, name, pid = self.draw.choice(ranks)
        if not send(pid, signal.SIGSTOP):
            return False
        seconds = self.draw.choice((self.draw.uniform(0.1, 1.5), self.draw.uniform(WATCHDOG + 1, 8), 3600))
        if seconds > WATCHDOG:
            struck.append((name, node))
        if seconds < 60:
            self.heal_later(f"rank {pid}", seconds, lambda: send(pid, signal.SIGCONT))
        return True

    def away(self, part):
        """Kills it; it is started again at once, or after a while."""
        if part.name in self.broken or not part.pid:
            return False
        if self.draw.random() < 0.5:
            part.wanted = False

            def back():
                part.wanted = True
            self.heal_later(part.name, self.duration(), back)
        return part.send(signal.SIGKILL)

    def agent(self, _):
        return self.away(self.draw.choice(self.yard.agents))

    def server(self, _):
        return self.away(self.yard.servers[0])

    def save(self, struck):
        """Kills rank 0 of a gang while it writes a checkpoint."""
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            for folder in self._being_written():
                for node, name, pid in self.ranks():
                    if folder.endswith(name[:8]) and name.endswith(".0") and send(pid, signal.SIGKILL):
                        struck.append((name, node))
                        return True
            time.sleep(0.001)
        return False

    def _being_written(self):
        """Folders of jobs, PROJECT/NAME-UID, in which a checkpoint has not got its name yet."""
        found = []
        for folder in pathlib.Path(self.yard.dir, "checkpoints/default").glob("*"):
            try:
                if any(entry.name.startswith(".tmp-") for entry in os.scandir(folder)):
                    found.append(str(folder))
            except OSError:
                continue
        return found

    def _cut(self, network):
        node = self.draw.randrange(NODES)
        if not has_own_machine() or (network, node) in self.broken:
            return False
        self.yard.networks[network].set(node, "down")
        self.heal_later((network, node), self.duration(), lambda: self.yard.networks[network].set(node, "up"))
        return True

    def cut(self, _):
        return self._cut("data")

    def cut_control(self, _):
        return self._cut("control")

    def disk(self, _):
        """Of one node only."""
        node = self.draw.randrange(NODES)
        full = pathlib.Path(self.yard.state_dirs[node], "full")
        if not has_own_machine() or ("disk", node) in self.broken:
            return False
        fill_disk(full)
        self.heal_later(("disk", node), self.draw.uniform(0.5, 5), full.unlink)
        return True

    def pause(self, _):
        name = self.jobs.running()
        if name is None or ("job", name) in self.broken or self.yard.servers[0].name in self.broken:
            return False
        if not self.jobs.pause(name):  # it has just ended
            return False
        self.heal_later(("job", name), self.draw.uniform(0.2, 3), lambda: self.jobs.resume(name))
        return True

    def liar(self, _):
        kind, node = self.draw.choice(LIES), self.draw.randrange(NODES)
        if ("liar", node) in self.broken:
            return False
        addresses = [f"{self.yard.host(node)}:{port}" for port in self.yard.rank_ports(node)]
        program = [sys.executable, str(pathlib.Path(__file__).with_name("liar.py"))]
        if kind == "listen":
            command = [*self.yard.on(node), *program, kind, self.draw.choice(addresses)]
        else:
            command = [*program, "connect", kind, *addresses]
        process = subprocess.Popen(command)

        def leave():
            process.kill()
            process.wait()
        self.heal_later(("liar", node), self.draw.uniform(1, 4), leave)
        return True


class Jobs:
    """The jobs of the campaign, some of them at once, each watched from its beginning to its end."""

    def __init__(self, yard, steps):
        from yard import gpt, text_file
        self.yard, self.steps = yard, steps
        self.spec = gpt(text_file(yard.dir), steps, every_steps=SAVE_EVERY)
        self.spec["parallel"] = {"logical_ranks": LOGICAL_RANKS, "progress_timeout_seconds": WATCHDOG}
        self.spec["evaluation"]["every_steps"] = 150
        self.spec["retry"]["max_restarts"] = 1000
        self.names, self.watchers, self.uids = [], {}, {}
        self.figures, self.wrong, self.lost = collections.Counter(), [], []
        self.with_second_owner, self.lost_of_these = set(), []
        self.ends = collections.defaultdict(list)  # by kind of fault: seconds until the attempt had ended
        self._ending = threading.Event()

    def undisturbed(self):
        from yard import resources_pb, values_of
        begin = time.monotonic()
        name = self.yard.submit(self.spec).name
        self.yard.wait_for(name, resources_pb.SUCCEEDED, 120)
        self.digest, self.values = self.yard.final_digest(name), values_of(self.yard.metrics(name))
        assert self.digest and sorted(self.values) == list(range(1, self.steps + 1)), "the undisturbed job is not whole"
        return time.monotonic() - begin

    def submit_more(self):
        """Until told to end, whenever one ends the next one begins."""
        from yard import Watcher
        while not self._ending.is_set():
            if len([name for name in self.names if self.watchers[name].end is None]) >= JOBS_AT_ONCE:
                self._ending.wait(0.05)
                continue
            ranks = RANKS[len(self.names) % len(RANKS)]
            spec = dict(self.spec, resources={"min_slots": ranks, "device": "CPU"})
            if len(self.names) % 2 == 0:
                shard = ("OPTIMIZER", "NONE")[len(self.names) // 2 % 2]
                spec["parallel"] = dict(self.spec["parallel"], second_owner=True, shard=shard)
            job = self.yard.submit(spec)
            if len(self.names) % 2 == 0:
                self.with_second_owner.add(job.name)
            self.watchers[job.name] = Watcher(self.yard, job.name)
            self.uids[job.name] = job.uid
            self.names.append(job.name)

    def end(self):
        self._ending.set()

    def states(self):
        """Of the jobs that have not ended, as their feeds say: {name: state}."""
        states = {}
        for name in list(self.names):
            watcher = self.watchers[name]
            if watcher.end is None:
                states[name] = next((i.state.to for i in reversed(watcher.items) if i.HasField("state")), 0)
        return states

    def running(self):
        from yard import resources_pb
        return next((name for name, state in self.states().items() if state == resources_pb.RUNNING), None)

    def wait_for_meeting(self, seconds):
        """For ranks that are there and have not begun."""
        from yard import resources_pb
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if resources_pb.STARTING in self.states().values() and self.yard.workers():
                return True
            time.sleep(0.002)
        return False

    def pause(self, name):
        from yard import grpc, jobs_pb
        try:
            self.yard.api.job.PauseJob(jobs_pb.PauseJobRequest(name=name), timeout=2)
            return True
        except grpc.RpcError:
            return False

    def resume(self, name):
        from yard import grpc, jobs_pb
        if self.watchers[name].end is not None:
            return None
        try:
            self.yard.api.job.ResumeJob(jobs_pb.ResumeJobRequest(name=name), timeout=0.2)
        except grpc.RpcError:  # it is not suspended yet, or the server is away
            return AGAIN
        return None

    # --- judgement -----------------------------------------------------------------------------------

    def judge_all(self, faults):
        from yard import ENDED, eventually
        begin = time.monotonic()
        for name in self.names:
            try:
                job = eventually(lambda: (lambda j: j if j.state in ENDED else None)(self.yard.get(name)),
                                 max(1, 240 - (time.monotonic() - begin)), f"{name} to end")
            except AssertionError as error:
                self.figures["jobs_wrong"] += 1
                self.wrong.append(f"{error}: {self.yard.get(name)}")
                continue
            self.judge(name, job, faults)

    def judge(self, name, job, faults):
        from yard import resources_pb, values_of, without_timings
        found = collections.Counter()
        found["jobs_wrong"] = job.state != resources_pb.SUCCEEDED
        found["weights_differ"] = self.yard.final_digest(name) != self.digest
        found["values_differ"] = values_of(self.yard.metrics(name)) != self.values
        watcher = self.watchers[name]
        found["watch_missed"] = (0 if watcher.join(30) else 1) + watcher.missed()
        found["values_differ"] += {s: without_timings(v) for s, v in watcher.series().items()} != self.values
        self.figures["attempts"] += job.attempt
        self.figures["restarts"] += job.restarts
        notes = self.judge_ends(name, watcher.items, faults, found)
        found = +found
        self.figures.update(found)
        if found:
            self.wrong.append(f"{name}: {dict(found)} {watcher.error or ''}\n    {job.state} {job.reason.code}: "
                              f"{job.reason.message}" + "".join(f"\n    {note}" for note in notes))

    def judge_ends(self, name, items, faults, found):
        """How far each attempt had come beyond where the next one began; whether its end came within the bound and named
        what was struck, where only one thing was."""
        from yard import resources_pb
        step, notes = 0, []
        for item in items:
            at = item.time.seconds + item.time.nanos / 1e9
            if item.HasField("metrics"):
                step = max(step, item.metrics.step)
            elif item.HasField("attempt_started"):
                of_these = self.lost_of_these if name in self.with_second_owner else self.lost
                of_these.append(max(0, step - item.attempt_started.step))
                step = item.attempt_started.step
            elif item.HasField("state") and item.state.to == resources_pb.QUEUED and item.attempt > 0:
                notes += self.judge_end(name, item, at, faults, found)
        return notes

    def judge_end(self, name, item, at, faults, found):
        reason = item.state.reason
        if reason.code not in ("BACKOFF", "NODE_LOST", "RESTARTS_SPENT", "INTERRUPTED"):
            return []  # it was paused or moved
        notes = []
        if not re.search(r"rank \d+ on node-\d", reason.message):
            found["failures_unnamed"] += 1
            notes.append(f"attempt {item.attempt}: {reason.code}: {reason.message}")
        mine = f"{self.uids[name]}.{item.attempt}."
        struck = [fault for fault in faults if fault.began < at and any(rank.startswith(mine) for rank, _ in fault.ranks)]
        if not struck:
            return notes
        fault, seconds = struck[0], at - struck[0].began
        # What else was broken then, or shortly before, would explain the end as well.
        if any(other is not fault and other.began < at and other.until > fault.began - ALONE for other in faults):
            return notes
        self.ends[fault.kind].append(seconds)
        notices = TIME_TO_NOTICE if name in self.with_second_owner else 0
        if seconds > BOUND["stop" if fault.kind == "stop" else "kill"] + notices:
            found["late_ends"] += 1
            notes.append(f"attempt {item.attempt}: ended {seconds:.1f} s after {fault}: {reason.message}")
        # A rank that was killed is named as the one that failed; one that was stopped, by the others.
        named = [f"rank {rank.rsplit('.', 1)[1]} (" if fault.kind == "stop" else
                 f"rank {rank.rsplit('.', 1)[1]} on node-{node}: LOST" for rank, node in fault.ranks]
        if not any(words in reason.message for words in named):
            found["failures_unnamed"] += 1
            notes.append(f"attempt {item.attempt}: {fault}: {reason.message}")
        return notes


def strike_alone(faults, jobs):
    """A fault that is seen to its end before anything else happens: all is healed for a while, and a job runs."""
    deadline = time.monotonic() + 30
    healed = max((fault.until for fault in faults.log), default=0) + ALONE
    while (faults.heals or time.time() < healed or jobs.running() is None) and time.monotonic() < deadline:
        faults.heal_due()
        time.sleep(0.01)
    return faults.strike(("kill", "stop", "save"))


def strike_all(faults, wanted, draw, watch_jobs):
    due = time.monotonic()
    while faults.count < wanted:
        faults.heal_due()
        if time.monotonic() < due:
            time.sleep(0.01)
            continue
        watch_jobs()
        alone = draw.random() < 0.1
        if strike_alone(faults, faults.jobs) if alone else faults.strike():
            due = time.monotonic() + (WATCHDOG + 3 if alone else draw.uniform(0.2, 2.2))
            if faults.count % 20 == 0:
                print(f"{faults.count} faults, {len(faults.jobs.names)} jobs submitted", flush=True)
    faults.heal_due(everything=True)


def run(wanted, seed, steps, random):
    from campaign import Counter
    from yard import eventually
    if not has_own_machine():
        print("no network namespace can be made here: no link is cut and no disk is filled")
    begin = time.monotonic()
    yard = make_yard(NODES, SLOTS)
    with yard:
        jobs = Jobs(yard, steps)
        print(f"undisturbed, a job takes {jobs.undisturbed():.1f} s", flush=True)
        draw = random.Random(seed)
        faults = Faults(yard, draw, jobs)
        counter = Counter(yard, slots=SLOTS)
        counter.start()
        submitter = threading.Thread(target=jobs.submit_more, daemon=True)
        submitter.start()

        def submits():
            assert submitter.is_alive(), "jobs can be submitted no more"
        try:
            strike_all(faults, wanted, draw, submits)
            jobs.end()
            submitter.join(60)
            jobs.judge_all(faults.log)
            try:
                eventually(lambda: not yard.workers(), 30)
            except AssertionError:
                jobs.figures["processes_left"] += len(yard.workers())
                jobs.wrong.append(f"left: {yard.workers()}")
            # Agents ask every 5 s whether anybody will read the states that they have.
            segments = []
            try:
                eventually(lambda: not segments_left(yard.processes()), 15)
            except AssertionError:
                segments = segments_left(yard.processes())
            jobs.figures["segments_left"] = len(segments)
            jobs.wrong += segments
        finally:
            counter.end()
        if jobs.wrong or counter.double_runs or counter.double_slots:
            print(yard.logs())
    jobs.figures["processes_left"] += len(yard.processes())
    return report(jobs, faults, counter, f"seed {seed}; {time.monotonic() - begin:.0f} s")


def report(jobs, faults, counter, words):
    jobs.figures["double_runs"] = len(counter.double_runs)
    jobs.figures["double_slots"] = len(counter.double_slots)
    jobs.wrong += [f"at one moment: {double}" for double in counter.double_runs | counter.double_slots]
    lost_most, of_these = max(jobs.lost, default=0), sorted(jobs.lost_of_these)
    if of_these:
        kept = sum(lost <= 1 for lost in of_these)
        print(f"with a second owner, {kept} of {len(of_these)} attempts began at most a step before the end of the one before; "
              f"the others lost up to {of_these[-1]}")
        lost_most = max(lost_most, of_these[-1])
    # A checkpoint may be on its way when a gang ends, and the one after it be due.
    too_much = lost_most > 2 * SAVE_EVERY
    print(*jobs.wrong, sep="\n")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(faults.kinds.items())))
    for kind, seconds in sorted(jobs.ends.items()):
        print(f"{kind}: {len(seconds)} alone, the attempt ended after {max(seconds):.1f} s at most")
    print(f"{words}; {jobs.figures['attempts']} attempts, {jobs.figures['restarts']} restarts")
    figures = {"faults": faults.count, "jobs": len(jobs.names)}
    figures.update({name: int(jobs.figures[name]) for name in COUNTED})
    figures["steps_lost_max"] = lost_most
    print(json.dumps(figures))
    return any(figures[name] for name in COUNTED) or too_much
