#!/usr/bin/python3
"""A node whose disk fills up, for real: its state directory lies on a small tmpfs."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from yard import (BIN, Yard, eventually, gpt, jobs_pb, resources_pb, run_pb, run_services_pb,  # noqa: E402
                  text_file, values_of)

SIZE_MIB = 32
WITHIN = 30  # seconds, from the full disk to a first step elsewhere


def mounted():
    """A small tmpfs, or nothing where this process may not mount one."""
    folder = tempfile.mkdtemp(prefix="trainyard-full-")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=700", "tmpfs", folder],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return folder
    os.rmdir(folder)
    print(f"skipped: a tmpfs cannot be mounted here: {done.stdout.strip()}")
    return None


class FullDiskTest(unittest.TestCase):
    """The yard's own agent has room; that of the node `small` lies on the tmpfs."""

    def setUp(self):
        self.disk = FOLDER
        self.yard = Yard().__enter__()
        self.text = text_file(self.yard.dir)
        self.own = self.nodes()[0].name
        self.agent = self.start_agent()
        eventually(lambda: len(self.nodes()) == 2, what="the second agent")

    def tearDown(self):
        self.agent.send_signal(signal.SIGINT)
        left = self.agent.wait(20)
        self.free()
        result = self._outcome.result
        failed = any(test is self for test, _ in result.failures + result.errors)
        if failed:
            print(pathlib.Path(self.yard.dir, "small.log").read_text(), file=sys.stderr)
        self.yard.__exit__(AssertionError if failed else None, None, None)
        subprocess.run(["find", self.disk, "-mindepth", "1", "-delete"], check=False)
        self.assertEqual(left, 0, "the agent left in order")

    def start_agent(self):
        with open(self.yard.dir + "/small.log", "ab") as log:
            return subprocess.Popen(
                [str(BIN / "trainyard-agent"), "--server", self.yard.address, "--node", "small", "--token-file",
                 self.yard.dir + "/tokens/agent", "--state-dir", self.disk + "/state", "--cpu-slots", "1",
                 "--threads-per-slot", "1"],
                env=dict(os.environ, TRAINYARD_YARD=self.yard.dir), stderr=log)

    def fill(self):
        with open(self.disk + "/filler", "wb", buffering=0) as filler:
            for size in (1 << 20, 4096, 1):
                try:
                    while filler.write(b"x" * size) == size:
                        pass
                except OSError:
                    pass
        self.filled = time.monotonic()

    def free(self):
        pathlib.Path(self.disk, "filler").unlink(missing_ok=True)

    def nodes(self):
        return self.yard.api.node.ListNodes(run_services_pb.ListNodesRequest()).nodes

    def node(self, name="nodes/small"):
        return next(node for node in self.nodes() if node.name == name)

    def drain(self, name):
        self.yard.api.node.DrainNode(run_services_pb.DrainNodeRequest(name=name))

    def undrain(self, name):
        self.yard.api.node.UndrainNode(run_services_pb.UndrainNodeRequest(name=name))

    def submit(self, steps, **checkpoint):
        return self.yard.submit(gpt(self.text, steps, **checkpoint)).name

    def holder(self):
        """Nodes on which a job holds a slot."""
        return [node.name for node in self.nodes() for slot in node.slots if slot.job]

    def assert_cordoned(self):
        node = self.node()
        self.assertEqual(node.state, resources_pb.Node.CORDONED)
        self.assertIn("its disk is full", node.cordon_reason)
        self.assertIn(self.disk, node.cordon_reason)
        self.assertEqual(node.report.disk_total_bytes, SIZE_MIB << 20)
        self.assertGreater(node.report.memory_free_bytes, 0)
        shown = self.yard.call("node", "get", "small")
        self.assertIn("CORDONED", shown)
        self.assertIn(f"free of {SIZE_MIB}", shown)

    def assert_alive(self):
        self.assertIsNone(self.agent.poll(), "the agent goes on")

    def test_job_that_is_to_start_runs_elsewhere(self):
        self.drain(self.own)
        self.fill()
        name = self.submit(100000)
        self.undrain(self.own)
        self.yard.wait_for_step(name, 1, WITHIN)
        self.assertLess(time.monotonic() - self.filled, WITHIN)
        self.assertEqual(self.holder(), [self.own])
        eventually(lambda: self.node().state == resources_pb.Node.CORDONED, what="the cordon")
        self.assert_cordoned()
        self.assert_alive()

    def test_job_that_runs_there_goes_on_elsewhere(self):
        self.drain(self.own)
        name = self.submit(20000, every_steps=20)
        self.yard.wait_for_step(name, 60)
        self.assertEqual(self.holder(), ["nodes/small"])
        self.undrain(self.own)
        self.fill()
        job = eventually(lambda: (job := self.yard.get(name)).attempt == 2 and job.state == resources_pb.RUNNING and job,
                         WITHIN, f"{name} runs elsewhere")
        self.assertLess(time.monotonic() - self.filled, WITHIN)
        self.assertEqual(self.holder(), [self.own])
        self.assertEqual(job.failure.category, run_pb.Failure.STORAGE, job)
        self.assertIn(self.disk, job.failure.message)
        self.assertEqual(job.restarts, 1)
        eventually(lambda: self.node().state == resources_pb.Node.CORDONED, what="the cordon")
        self.assert_cordoned()
        self.assert_alive()
        self.assertEqual([failure.category for failure in self.node().failures], ["STORAGE"])
        # Nothing is lost: the curve has every step.
        self.yard.wait_for_step(name, 400)
        values = values_of(self.yard.metrics(name))
        self.assertEqual(sorted(values), list(range(1, max(values) + 1)))

    def test_with_one_node_explain_says_what_to_free_and_the_job_goes_on_by_itself(self):
        self.drain(self.own)
        name = self.submit(1000, every_steps=20)
        self.yard.wait_for_step(name, 40)
        self.fill()

        def explained():
            said = self.yard.call("explain", name)
            return said if "its disk is full" in said else None
        said = eventually(explained, WITHIN, "explain tells of the disk")
        self.assertLess(time.monotonic() - self.filled, WITHIN)
        self.assertIn("nodes/small", said)
        self.assertIn(self.disk + "/state", said)
        self.assertIn("free some", said)
        self.assertRegex(said, r"its disk is full: [0-9.]+ (B|KiB|MiB) are free")
        self.assert_alive()
        attempts = self.yard.get(name).attempt
        # Nothing loops meanwhile: no attempt is made where none can begin.
        begin = time.monotonic()
        eventually(lambda: time.monotonic() - begin > 6, what="some heartbeats")
        self.assertLessEqual(self.yard.get(name).attempt, attempts + 1)
        self.free()
        job = self.yard.wait_for(name, resources_pb.SUCCEEDED, 120)
        self.assertLessEqual(job.restarts, 2)
        self.assertEqual(self.node().state, resources_pb.Node.READY)

    def test_agent_that_starts_again_on_a_full_disk_serves_once_there_is_room(self):
        self.drain(self.own)
        name = self.submit(100000)
        self.yard.wait_for_step(name, 5)
        self.fill()
        eventually(lambda: self.yard.get(name).state == resources_pb.QUEUED, WITHIN, "the job is told to have failed")
        self.agent.kill()
        self.agent.wait()
        self.agent = self.start_agent()
        eventually(lambda: self.node().state == resources_pb.Node.CORDONED, WITHIN, "the cordon")
        self.assert_alive()
        self.free()
        step = self.yard.get(name).step
        self.yard.wait_for_step(name, step + 1)


if __name__ == "__main__":
    FOLDER = mounted()
    if FOLDER is None:
        sys.exit(77)
    try:
        unittest.main(verbosity=2)
    finally:
        subprocess.run(["umount", "-l", FOLDER], check=False)
        os.rmdir(FOLDER)
