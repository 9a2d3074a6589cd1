"""Yards of two versions; see `run`. Each case mixes programs in one folder: the yard's supervisor starts what lies there."""
import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from yard import (Watcher, Yard, eventually, gpt, jobs_pb, kill, resources_pb, text_file, values_of)  # noqa: E402

NEW = pathlib.Path(os.environ["TRAINYARD_BIN"])
OLD = pathlib.Path(os.environ["TRAINYARD_OLD_BIN"])
STEPS = 2000


class Programs:
    """A folder with a program of one version or the other under each name."""

    def __init__(self, **versions):
        self._folder = tempfile.TemporaryDirectory(prefix="trainyard-programs-")
        self.path = pathlib.Path(self._folder.name)
        os.chmod(self.path, 0o755)
        for part in ("trainyard", "server", "agent", "worker", "sizer"):
            self.put(part, versions.get(part, NEW))

    def put(self, part, folder):
        name = part if part == "trainyard" else "trainyard-" + part
        if not (folder / name).exists():
            return  # earlier versions have fewer programs
        shutil.copy(folder / name, self.path / (name + ".new"))
        os.rename(self.path / (name + ".new"), self.path / name)

    def remove(self):
        self._folder.cleanup()


def restart(yard, part):
    """Ends a part as an upgrade does; the supervisor starts what now lies under its name."""
    before = yard.pid(part)
    kill(before, signal.SIGTERM)
    eventually(lambda: yard.pid(part) not in (None, before), 30, f"another {part}")


class ContractTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """The bits that every mixture has to give."""
        programs = Programs()
        with Yard(programs=programs.path) as yard:
            name = yard.submit(gpt(text_file(yard.dir), STEPS, every_steps=100)).name
            yard.wait_for(name, resources_pb.SUCCEEDED, 120)
            cls.digest, cls.values = yard.final_digest(name), values_of(yard.metrics(name))
        programs.remove()

    @contextlib.contextmanager
    def yard_of(self, **versions):
        """A yard of such programs; a failure shows its logs."""
        self.programs = Programs(**versions)
        try:
            with Yard(programs=self.programs.path) as self.yard:
                self.yard.api.patient = True
                self.text = text_file(self.yard.dir)
                yield
            self.assertEqual(self.yard.processes(), {})
        finally:
            self.programs.remove()

    def submit(self):
        return self.yard.submit(gpt(self.text, STEPS, every_steps=100)).name

    def assert_whole(self, name, attempt=None, watcher=None):
        job = self.yard.wait_for(name, resources_pb.SUCCEEDED, 120)
        self.assertEqual(job.restarts, 0, job)
        if attempt is not None:
            self.assertEqual(job.attempt, attempt)
        self.assertEqual(self.yard.final_digest(name), self.digest)
        self.assertEqual(values_of(self.yard.metrics(name)), self.values)
        if watcher is not None:
            watcher.join(20)
            self.assertIsNone(watcher.error)

    def exercise(self):
        """What a user does with a yard: train, watch, pause and go on, cancel."""
        watched = self.submit()
        watcher = Watcher(self.yard, watched)
        self.assert_whole(watched, attempt=1, watcher=watcher)
        paused = self.submit()
        self.yard.wait_for_step(paused, 20)
        self.yard.api.job.PauseJob(jobs_pb.PauseJobRequest(name=paused))
        self.yard.wait_for(paused, resources_pb.SUSPENDED)
        self.yard.api.job.ResumeJob(jobs_pb.ResumeJobRequest(name=paused))
        self.assert_whole(paused, attempt=2)
        cancelled = self.submit()
        self.yard.wait_for_step(cancelled, 20)
        self.yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=cancelled))
        self.yard.wait_for(cancelled, resources_pb.CANCELLED)
        self.assertEqual(self.yard.training_pids(), [])

    def test_old_agent_and_worker(self):
        with self.yard_of(agent=OLD, worker=OLD):
            self.exercise()

    def test_old_worker(self):
        with self.yard_of(worker=OLD):
            self.exercise()

    def test_old_agent(self):
        """As while a node's packages are replaced: its agent started before."""
        with self.yard_of(agent=OLD):
            self.exercise()

    def test_old_agent_outlives_its_server(self):
        with self.yard_of(agent=OLD, worker=OLD):
            name = self.submit()
            self.yard.wait_for_step(name, 20)
            kill(self.yard.pid("server"))
            self.assert_whole(name, attempt=1)

    def test_old_client(self):
        """Commands of before: the same exit codes, and answers that it can read."""
        with self.yard_of():
            old = Programs(trainyard=OLD)
            self.addCleanup(old.remove)
            self.use_client_of(old)

    def test_old_server_and_new_client(self):
        with self.yard_of(server=OLD, agent=OLD, worker=OLD):
            new = Programs()
            self.addCleanup(new.remove)
            self.use_client_of(new)

    def use_client_of(self, programs):
        name = self.submit()
        job = name.rsplit("/", 1)[1]

        def run(*arguments):
            done = self.yard.run(*arguments, program=programs.path / "trainyard", timeout=120)
            self.assertEqual(done.returncode, 0, f"{arguments}: {done.stdout}{done.stderr}")
            return done.stdout

        self.assertIn("SUCCEEDED", run("watch", job) + run("get", job))
        self.assertIn(job, run("ps", "--all"))
        self.assertIn("loss", run("metrics", job))
        self.assertIn(str(STEPS), run("checkpoints", job))
        run("logs", job)
        run("explain", job)
        run("node", "list")
        other = self.submit()
        self.yard.wait_for_step(other, 20)
        run("cancel", other.rsplit("/", 1)[1])
        self.yard.wait_for(other, resources_pb.CANCELLED)
        self.assert_whole(name)

    def test_yard_is_replaced_while_its_jobs_run(self):
        """Server first, then agent, whose worker goes on; then what comes next is all new."""
        with self.yard_of(trainyard=OLD, server=OLD, agent=OLD, worker=OLD):
            running = self.submit()
            watcher = Watcher(self.yard, running)
            queued = self.submit()
            self.yard.wait_for_step(running, 20)
            workers = self.yard.training_pids()
            self.programs.put("server", NEW)
            self.programs.put("sizer", NEW)
            restart(self.yard, "server")
            self.yard.wait_for_step(running, self.yard.get(running).step + 20)
            self.assertEqual(self.yard.training_pids(), workers, "the server was replaced: nothing is to be noticed")
            self.programs.put("worker", NEW)
            self.programs.put("agent", NEW)
            restart(self.yard, "agent")
            self.yard.wait_for_step(running, self.yard.get(running).step + 20)
            self.assertEqual(self.yard.training_pids(), workers, "the new agent takes over the worker that runs")
            self.assert_whole(running, attempt=1, watcher=watcher)
            self.assert_whole(queued, attempt=1)

    def test_old_server_refuses_the_new_database(self):
        """Servers are replaced together: one of before says so instead of writing what it does not understand."""
        with self.yard_of():
            self.programs.put("server", OLD)
            kill(self.yard.pid("server"), signal.SIGTERM)
            log = pathlib.Path(self.yard.dir, "logs/server.log")
            eventually(lambda: "use a newer trainyard-server" in log.read_text(errors="replace"), 30, "refusal in the log")
            self.programs.put("server", NEW)
            name = eventually(lambda: self.submit_if_up(), 60, "a server again")
            self.assert_whole(name)

    def submit_if_up(self):
        from yard import grpc
        try:
            return self.submit()
        except grpc.RpcError:
            return None
