#!/usr/bin/python3
"""A yard without a node of its own, on a Slurm: jobs that wait make nodes come, which go when nobody needs them, and what
goes wrong in Slurm costs no job anything and leaves no allocation over."""
import os
import pathlib
import re
import shutil
import signal
import sys
import unittest

from replicas import Replicas
from slurm import Slurm, missing
from yard import BIN, REPOSITORY, eventually, gpt, grpc, jobs_pb, resources_pb, run_services_pb, text_file

CANNOT_RUN = 77  # ctest's SKIP_RETURN_CODE
POOLS = """
pools:
  a:
    engine: slurm
    max: {nodes}
    idle_ttl: 2s
    boot_timeout: 60s
    node: {{device: CPU, slots: 1, memory: 1GiB}}
    slurm: {{script: {script}, options: ["--output={output}", "--time=60"], leave: 10s}}
"""


class SlurmYard(Replicas):
    """One server and no agent, but for those that Slurm starts on `nodes` nodes of one slot."""

    def __init__(self, nodes=3):
        super().__init__(servers=1, agents=0)
        self._nodes = nodes

    def _make(self):
        self.slurm = Slurm(self.dir + "/slurm", self._nodes).__enter__()
        # The server's own commands go through these, which a test may let fail.
        self.commands = pathlib.Path(self.dir, "commands")
        self.commands.mkdir()
        self.environment = dict(self.slurm.environment, TRAINYARD_YARD=self.dir, NO_COLOR="1",
                                XDG_CONFIG_HOME=self._folder.name + "/config",
                                PATH=f"{self.commands}:{self.slurm.environment['PATH']}")
        super()._make()

    def _server(self, i, port):
        pathlib.Path(self.dir, "scratch").mkdir(exist_ok=True)
        shipped = (REPOSITORY / "deploy/slurm/trainyard-node").read_text()
        script, config = f"{self.dir}/node", f"{self.dir}/agent.yaml"
        for name, value in (("agent", BIN / "trainyard-agent"), ("config", config), ("scratch", f"{self.dir}/scratch"), ("address", "127.0.0.1")):
            shipped, found = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", shipped, count=1)
            assert found == 1, name
        pathlib.Path(script).write_text(shipped)
        pathlib.Path(config).write_text(
            f"server: 127.0.0.1:{port}\ntoken-file: {self.dir}/tokens/agent\ncpu-slots: 1\nthreads-per-slot: 1\n"
            "leave-grace: 8\nstandby: 1\n")
        pathlib.Path(self.dir, "pools.yaml").write_text(
            POOLS.format(nodes=self._nodes, script=script, output=f"{self.dir}/logs/node-%x-%a.log"))
        part = super()._server(i, port)
        part._command += ["--pools", f"{self.dir}/pools.yaml"]
        return part

    def __exit__(self, kind, *rest):
        if hasattr(self, "slurm"):
            self.slurm.__exit__(kind, *rest)
        super().__exit__(kind, *rest)

    def pool(self):
        return self.api.node.ListPools(run_services_pb.ListPoolsRequest()).pools[0]

    def explain(self, name):
        return self.api.job.ExplainJob(jobs_pb.ExplainJobRequest(name=name))

    def once(self, command, script):
        """The next call of this command by the server is this script instead, in which $REAL is the command."""
        real = shutil.which(command, path=self.slurm.environment["PATH"])
        wrapper = self.commands / command
        wrapper.write_text(f'#!/bin/sh\nREAL={real}\nrm -f {wrapper}\n{script}\n')
        os.chmod(wrapper, 0o755)
        return wrapper

    def nothing_is_left(self):
        """Of nodes that nobody needs, in Slurm, in the yard and on disk."""
        eventually(lambda: not self.slurm.live(), 40, "allocations to end")
        try:
            eventually(lambda: not self.api.node.ListNodes(run_services_pb.ListNodesRequest()).nodes, 40, "nodes to be forgotten")
        except AssertionError as error:
            nodes = self.api.node.ListNodes(run_services_pb.ListNodesRequest()).nodes
            raise AssertionError(f"{error}\n{nodes}\n{self.pool()}") from error
        eventually(lambda: not os.listdir(self.dir + "/scratch"), 20, "their folders to be removed")


class SlurmTest(unittest.TestCase):
    def setUp(self):
        self.yard = self.enterContext(SlurmYard())
        self.text = text_file(self.yard.dir)

    def submit(self, steps, slots=1, device="CPU", **more):
        spec = gpt(self.text, steps, **more)
        spec["parallel"] = {"logical_ranks": 2}
        spec["resources"] = {"min_slots": slots, "device": device}
        return self.yard.submit(spec).name

    def digests(self, names, seconds=240):
        for name in names:
            self.yard.wait_for(name, resources_pb.SUCCEEDED, seconds)
        return {self.yard.final_digest(name) for name in names}

    def test_nodes_come_for_jobs_that_wait_and_go_when_nobody_needs_them(self):
        self.assertEqual(self.yard.slurm.live(), {})
        names = [self.submit(40) for _ in range(19)] + [self.submit(40, slots=2)]
        said = eventually(lambda: [d for d in self.yard.explain(names[-1]).details if "asked of pool a" in d], 30)
        self.assertRegex(said[0], r"nodes? (is|are) asked of pool a: ")
        eventually(lambda: any(node.state == node.UP for node in self.yard.pool().nodes), 60, "a node")
        def shows(pattern):
            shown = self.yard.call("node", "pools", "--server", self.yard.addresses[0], "--token-file",
                                   f"{self.yard.dir}/tokens/admin")
            return re.search(pattern, shown)
        eventually(lambda: shows(r"\na +slurm +[1-3] +0 +3 +1 CPU of 1.00 GiB\n"), 30)
        eventually(lambda: shows(r"\na-[0-9a-f]{8}-\d +UP +Slurm RUNNING as \d+_\d "), 30)
        most = 0

        def ended():
            nonlocal most
            most = max(most, len(self.yard.slurm.live()))
            return all(self.yard.get(name).state == resources_pb.SUCCEEDED for name in names)
        eventually(ended, 240, "all jobs")
        self.assertEqual(most, 3)
        self.assertEqual(len(self.digests(names)), 1, "the gang has the bits of one slot")
        self.yard.nothing_is_left()
        with self.assertRaises(grpc.RpcError) as refused:
            self.submit(40, device="CUDA")
        self.assertEqual(refused.exception.code(), grpc.StatusCode.FAILED_PRECONDITION, "no pool has GPUs")

    def test_what_goes_wrong_in_slurm_costs_nothing_and_leaves_nothing_over(self):
        slurm = self.yard.slurm
        # The answer of sbatch is lost: it was taken, and the server thinks that it was not.
        lost = self.yard.once("sbatch", '"$REAL" "$@" >/dev/null; echo "no answer" >&2; exit 1')
        names = [self.submit(3000, every_steps=100)]
        eventually(lambda: not lost.exists(), 30, "sbatch")
        self.yard.wait_for_step(names[0], 50, 90)
        self.assertEqual(len(slurm.live()), 1)
        # An allocation is cancelled: the job goes on where another one comes.
        first = next(iter(slurm.live()))
        slurm.call("scancel", first)
        eventually(lambda: self.yard.get(names[0]).attempt > 1 and self.yard.get(names[0]).state == resources_pb.RUNNING, 90,
                   "the second attempt")
        self.assertNotIn(first, slurm.live())
        self.assertEqual(self.yard.get(names[0]).restarts, 0, "it left in order")
        # A node's slurmd dies, and the controller is away for a while: what runs goes on, and what waits is asked for later.
        slurm.kill("n1")
        slurm.kill("slurmctld", signal.SIGTERM)
        step = self.yard.get(names[0]).step
        names.append(self.submit(3000, every_steps=100))
        self.yard.wait_for_step(names[0], step + 100, 90)
        slurm.start_node("n1")
        slurm.start_controller()
        self.yard.wait_for_step(names[1], 50, 120)
        # The server is killed as it asks: it comes back, and asks for no more than it needs.
        killed = self.yard.once("sbatch", f'"$REAL" "$@" >/dev/null; kill -9 $PPID')
        names.append(self.submit(3000, every_steps=100))
        eventually(lambda: not killed.exists(), 60, "sbatch")
        self.yard.wait_for_step(names[2], 50, 120)
        self.assertLessEqual(len(slurm.live()), 3)
        self.assertEqual(len(self.digests(names)), 1)
        self.assertEqual([self.yard.get(name).restarts for name in names], [0, 0, 0])
        self.yard.nothing_is_left()

    def test_a_node_that_does_not_come_up_is_told_and_tried_less_and_less_often(self):
        pathlib.Path(self.yard.dir, "node").write_text("#!/bin/sh\nexit 3\n")
        name = self.submit(40)
        said = eventually(lambda: [d for d in self.yard.explain(name).details if "is not of use" in d], 60)
        self.assertIn("Slurm FAILED (NonZeroExitCode)", said[0])
        self.assertIn("is not of use", self.yard.explain(name).reason.message)

        def tries():
            return sorted(node.create_time.ToNanoseconds() for node in self.yard.pool().nodes)
        eventually(lambda: len(tries()) >= 4, 60, "four tries")
        pauses = [b - a for a, b in zip(tries(), tries()[1:])]
        self.assertGreater(pauses[2], 1.5 * pauses[0], pauses)
        self.yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))
        self.yard.nothing_is_left()


if __name__ == "__main__":
    why = missing()
    if why is not None:
        print(why)
        sys.exit(CANNOT_RUN)
    unittest.main(verbosity=2)
