#!/usr/bin/python3
"""Where a job is placed by what nodes compute with: one node of the machine's own instructions, and two whose oneDNN is
held to SSE4.1. Real programs."""
import os
import signal
import subprocess
import unittest

from yard import BIN, Watcher, Yard, eventually, gpt, jobs_pb, resources_pb, run_services_pb, text_file

NARROW = ("narrow1", "narrow2")


class ArithmeticTest(unittest.TestCase):
    def setUp(self):
        self.yard = self.enterContext(Yard())  # with one node of one slot
        self.text = text_file(self.yard.dir)
        self.nodes = self.yard.api.node
        self.wide, = self.names()
        self.start_narrow("narrow1")

    def names(self):
        return [node.name for node in self.nodes.ListNodes(run_services_pb.ListNodesRequest()).nodes]

    def start_narrow(self, node):
        state = f"{self.yard.dir}/{node}"
        with open(state + ".log", "wb") as log:
            agent = subprocess.Popen(
                [str(BIN / "trainyard-agent"), "--server", self.yard.address, "--node", node,
                 "--token-file", self.yard.dir + "/tokens/agent", "--state-dir", state, "--cpu-slots", "1",
                 "--threads-per-slot", "1", "--standby", "0"],
                env=dict(os.environ, TRAINYARD_YARD=self.yard.dir, ONEDNN_MAX_CPU_ISA="SSE41"), stderr=log)
        self.addCleanup(lambda: (agent.send_signal(signal.SIGINT), self.assertEqual(agent.wait(20), 0)))
        eventually(lambda: f"nodes/{node}" in self.names(), what=f"{node} registers")

    def drain(self, *nodes):
        for node in nodes:
            self.nodes.DrainNode(run_services_pb.DrainNodeRequest(name=node))

    def undrain(self, *nodes):
        for node in nodes:
            self.nodes.UndrainNode(run_services_pb.UndrainNodeRequest(name=node))

    def explain(self, name):
        return self.yard.api.job.ExplainJob(jobs_pb.ExplainJobRequest(name=name))

    def gang(self, **parallel):
        spec = gpt(self.text, 40)
        spec["resources"] = {"min_slots": 2, "device": "CPU"}
        spec["parallel"] = {"logical_ranks": 2, **parallel}
        return self.yard.submit(spec).name

    def nodes_of(self, watcher):
        return [sorted(item.attempt_started.nodes) for item in watcher.items if item.HasField("attempt_started")]

    def notices(self, watcher):
        told = [item.notice.notice.message for item in watcher.items if item.HasField("notice")]
        return [message for message in told if "arithmetic" in message]

    def ends_well(self, name, watcher):
        job = self.yard.wait_for(name, resources_pb.SUCCEEDED, 120)
        self.assertEqual(job.restarts, 0, f"{job}\n{self.yard.logs()}")
        self.assertTrue(watcher.join(20))

    def test_gangs_keep_to_nodes_that_compute_alike_unless_they_may_mix_them(self):
        name = self.gang()
        watcher = Watcher(self.yard, name)
        mixed = self.gang(arithmetic="ANY")
        mixed_watcher = Watcher(self.yard, mixed)
        self.ends_well(mixed, mixed_watcher)
        self.assertEqual(len(self.nodes_of(mixed_watcher)[0]), 2)
        self.assertIn("the arithmetic differs between ranks", "".join(self.notices(mixed_watcher)))

        why = self.explain(name)
        self.assertEqual(why.job.state, resources_pb.QUEUED, why)
        self.assertEqual(why.reason.code, "FITS_NO_NODE", why)
        self.assertIn("its slots must compute alike, and of 2 that fit at most 1 does", why.reason.message)
        details = "\n".join(why.details)
        self.assertRegex(details, r"1 CPU slot fits, 1 free, on nodes/narrow1: computes with '.*oneDNN instructions: sse41")
        self.assertIn("with parallel.arithmetic ANY it would start now", "".join(why.suggestions))
        self.assertEqual(self.yard.training_pids(), [], "no part of a gang starts alone")

        self.start_narrow("narrow2")
        self.ends_well(name, watcher)
        self.assertEqual(self.nodes_of(watcher), [sorted(NARROW)])
        self.assertEqual(self.notices(watcher), [])

    def test_job_of_one_arithmetic_waits_for_the_node_where_others_do_not(self):
        self.drain("nodes/narrow1")
        spec = gpt(self.text, 3000, every_steps=1000)
        spec["parallel"] = {"arithmetic": "SAME"}
        name = self.yard.submit(spec).name
        watcher = Watcher(self.yard, name)
        self.yard.wait_for_step(name, 20)
        self.undrain("nodes/narrow1")
        self.drain(self.wide)
        self.yard.wait_for(name, resources_pb.QUEUED)
        # The slot that it may not have serves another.
        other = self.yard.submit(gpt(self.text, 40)).name
        self.yard.wait_for(other, resources_pb.SUCCEEDED, 120)
        why = self.explain(name)
        self.assertEqual(why.job.state, resources_pb.QUEUED, why)
        self.assertIn("that computes as it began", why.reason.message)
        self.assertRegex(why.reason.message, r"it began with '.*oneDNN.*': 0 of 1 slots that fit compute so")
        self.assertIn("nodes/narrow1: computes otherwise than the job began", "\n".join(why.details))
        self.assertIn("is not bound to them", "".join(why.suggestions))

        self.undrain(self.wide)
        self.ends_well(name, watcher)
        self.assertEqual(self.nodes_of(watcher), [[self.wide.split("/")[1]]] * 2)
        self.assertEqual(self.notices(watcher), [], "its results are those of one kind of machine")


if __name__ == "__main__":
    unittest.main()
