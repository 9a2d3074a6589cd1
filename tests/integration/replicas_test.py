#!/usr/bin/python3
"""Three servers and four agents over one PostgreSQL: who leads, and who moves where when a server goes."""
import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from replicas import BIN, Api, MovingWatcher, Replicas  # noqa: E402
from yard import (eventually, gpt, grpc, jobs_pb, resources_pb, text_file, values_of, without_timings)  # noqa: E402


class ReplicasTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.yard = Replicas().__enter__()
        cls.spec = gpt(text_file(cls.yard.dir), 1000000, every_steps=500)
        cls.short = gpt(text_file(cls.yard.dir), 100)

    @classmethod
    def tearDownClass(cls):
        yard = cls.yard
        yard.__exit__(None, None, None)
        left = yard.processes()
        assert not left, f"processes left: {left}"

    def other_than(self, server):
        """Waits until another server leads, and returns it with the seconds that took."""
        begin = time.monotonic()
        at = eventually(lambda: [now for now in self.yard.leader()[:1] if now not in (None, server)], 30, "another leader")
        return at[0], time.monotonic() - begin

    def test_leader_and_its_links_may_go_at_any_time(self):
        """One long job and those who watch it, through all that a replica may suffer."""
        yard = self.yard
        try:
            self.go_through_all(yard)
        except BaseException:
            print(yard.logs())
            print(yard.call("node", "list"))
            raise

    @contextlib.contextmanager
    def part(self, what):
        """Not a subTest: after what failed nothing is to be learned from the rest, and the logs are shown."""
        try:
            yield
        except BaseException:
            print("failed in:", what)
            raise

    def go_through_all(self, yard):
        name = yard.submit(self.spec).name
        watcher = MovingWatcher(yard, name)
        cli = subprocess.Popen([str(BIN / "trainyard"), "watch", name, "-o", "json", "--server", ",".join(yard.addresses),
                                "--token-file", yard.dir + "/tokens/admin"], env=yard.environment, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        yard.wait_for_step(name, 20)
        workers = yard.workers()
        self.assertEqual(len(workers), 1)

        with self.part("kill -9 of the leader"):
            leader = eventually(lambda: [now for now in yard.leader()[:1] if now is not None])[0]
            yard.servers[leader].wanted = False
            yard.servers[leader].send(signal.SIGKILL)
            second, seconds = self.other_than(leader)
            self.assertLess(seconds, 5)
            short = yard.submit(self.short).name  # the new leader acts
            yard.wait_for(short, resources_pb.SUCCEEDED)
            yard.servers[leader].wanted = True

        with self.part("SIGTERM of the leader"):
            yard.servers[second].send(signal.SIGTERM)
            third, seconds = self.other_than(second)
            self.assertLess(seconds, 1)
            eventually(lambda: all(part.pid for part in yard.servers))

        with self.part("a replica is cut off from its store"):
            cut = yard.leader()[0]
            for link in yard.store_links[cut]:
                link.set("stalled")
            stalled = time.monotonic()
            _, seconds = self.other_than(cut)
            self.assertLess(seconds, 5)
            eventually(lambda: all(yard.server_of(i) not in (cut, None) for i in range(4)), 15, "agents to have moved")
            alone = Api(yard.addresses[cut], yard.token)
            asked = time.monotonic()
            with self.assertRaises(grpc.RpcError) as refused:
                alone.job.GetJob(jobs_pb.GetJobRequest(name=name), wait=False)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertLess(time.monotonic() - asked, 5)
            alone.close()
            short = yard.submit(self.short).name
            yard.wait_for(short, resources_pb.SUCCEEDED)
            # Longer than any node's lease and its margin: nobody is lost for one replica's sake.
            eventually(lambda: time.monotonic() - stalled > 14, 20)
            self.assertEqual(len(yard.connected_nodes()), 4)
            for link in yard.store_links[cut]:
                link.set("open")

        self.assertEqual(yard.workers(), workers, "it went on through all of it")
        yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))
        job = yard.wait_for(name, resources_pb.CANCELLED)
        self.assertEqual(job.attempt, 1)
        self.assertEqual(job.restarts, 0)
        self.assertTrue(watcher.join(20))
        self.assertEqual(watcher.missed(), 0)
        values = values_of(yard.metrics(name))
        self.assertEqual({s: without_timings(v) for s, v in watcher.series().items()}, values)
        self.assertEqual(sorted(values), list(range(1, job.step + 1)))
        out, _ = cli.communicate(timeout=20)
        items = [json.loads(line) for line in out.splitlines()]
        sequences = [int(item["sequence"]) for item in items if "sequence" in item]
        self.assertEqual(sequences, list(range(1, len(watcher.items) + 1)), "the command line moved, too")


if __name__ == "__main__":
    unittest.main(verbosity=2)
