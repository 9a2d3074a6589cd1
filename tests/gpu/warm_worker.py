"""A worker that waits for a rank as an agent's does (executor/agent/warm_workers.h, local_rank.h), with nothing but Python."""
import json
import struct
import subprocess
import time

import rank_events
import timed

WARM = "waiting, warm, on "  # executor/worker/standby.cc
FENCED = 75                  # executor/run/run_directory.h
LEASE_SECONDS = 120          # a worker that nobody ends any more ends by itself
END_SECONDS = 30             # for a checkpoint, as an agent's grace


class Failed(Exception):
    """Why there is no figure; `told` is what the worker said last."""

    def __init__(self, why, told):
        super().__init__(why)
        self.told = told


class WarmWorker:
    """A worker in `folder`, a new one, which is its run directory, too. As a context, it is gone afterwards."""

    def __init__(self, program, device, threads, folder, environment):
        self.folder, self.device, self.threads, self.process = folder, device, threads, None
        folder.mkdir()
        self.log = open(folder / "log", "wb")
        try:
            self.process = timed.start([program, "--standby", "--device", device, "--threads", str(threads)],
                                       stdin=subprocess.PIPE, stdout=self.log, stderr=subprocess.STDOUT, bufsize=0,
                                       env=dict(environment, TRAINYARD_LOG="info"))
        except OSError as error:
            self.log.close()
            raise Failed(f"{program}: {error.strerror}", []) from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        timed.end(self.process, 0)
        self.process.stdin.close()
        self.log.close()

    def said(self):
        return (self.folder / "log").read_text(errors="replace")

    def failed(self, why):
        return Failed(why, self.said().strip().splitlines()[-8:] or ["(its log is empty)"])

    def ended(self):
        code = self.process.returncode
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return how + (": its lease was over" if code == FENCED else "")

    def wait(self, seconds, before, found):
        """What `found` finds, once that is something; fails when the worker ends before, or so many seconds are over."""
        deadline = timed.Deadline(seconds)
        while True:
            over, late = self.process.poll() is not None, not deadline.left()  # and then a last look
            if value := found():
                return value
            if over:
                raise self.failed(f"the worker ended before {before}, {self.ended()}")
            if late:
                raise self.failed(f"the worker took more than {seconds:.3g} s before {before}")
            time.sleep(0.002)

    def wait_until_warm(self, seconds):
        self.wait(seconds, "it was warm", lambda: WARM in self.said())

    def lease(self):
        until = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(LEASE_SECONDS * 1e9)
        (self.folder / "lease").write_bytes(struct.pack("=q", until))

    def first_step(self, spec, seconds):
        """Hands it a job's only rank. Milliseconds from then until its plan was there, its weights, and its first step."""
        assignment = {"key": {"job_uid": "bench", "attempt": 1, "rank": 0}, "job_name": "projects/bench/jobs/bench",
                      "world_size": 1, "slots": [0], "spec": spec, "checkpoint_root": str(self.folder / "checkpoints")}
        (self.folder / "assignment.json").write_text(json.dumps(assignment))
        (self.folder / "events.log").touch()
        self.lease()
        line = json.dumps({"run_dir": str(self.folder), "device": self.device, "threads": self.threads}) + "\n"
        told = time.time_ns()
        try:
            self.process.stdin.write(line.encode())
        except BrokenPipeError:
            pass  # it has ended, which the wait says
        what = {"started": "started_ms", "restored": "restored_ms", "metrics": "first_step_ms"}
        found = {}

        def look():
            try:
                for event in rank_events.read(self.folder / "events.log"):
                    if event.what in what:
                        found.setdefault(what[event.what], (event.time_us - told / 1e3) / 1e3)
            except ValueError as error:
                raise self.failed(f"events.log: {error}") from error
            return "first_step_ms" in found

        self.wait(seconds, "its first step", look)
        return found

    def suspend(self, seconds=END_SECONDS):
        """Ends it as an agent does that needs its slot; fails if it does not go, or not well."""
        self.lease()
        if not timed.end(self.process, seconds):
            raise self.failed(f"the worker was asked to leave after its first step and had not after {seconds:.3g} s")
        if self.process.returncode != 0:
            raise self.failed(f"the worker was asked to leave after its first step: {self.ended()}")
