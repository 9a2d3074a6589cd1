#!/usr/bin/python3
"""A whole yard: real PostgreSQL, server, agent and worker."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from links import Links  # noqa: E402
from yard import (BIN, Watcher, Yard, eventually, gpt, grpc, jobs_pb, kill, poisoned_clicks,  # noqa: E402
                  recommender, resources_pb, run_pb, run_services_pb, text_file, values_of, without_timings)


class YardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.yard = Yard().__enter__()
        cls.text = text_file(cls.yard.dir)

    @classmethod
    def tearDownClass(cls):
        yard = cls.yard
        yard.__exit__(None, None, None)
        left = yard.processes()
        assert not left, f"processes left after local stop: {left}"

    def submit(self, steps, **checkpoint):
        return self.yard.submit(gpt(self.text, steps, **checkpoint)).name

    def succeed(self, name, seconds=120):
        return self.yard.wait_for(name, resources_pb.SUCCEEDED, seconds)

    def assert_restarts(self, job, expected, why=""):
        """`job` spent so many restarts; if not, what its newest failure was and what its yard logged is shown."""
        if job.restarts != expected:
            self.fail(f"{job.restarts} restarts, expected {expected}; {why}\n{job}\n{self.yard.logs()}")

    def undisturbed(self, steps, **checkpoint):
        name = self.submit(steps, **checkpoint)
        self.succeed(name)
        return self.yard.final_digest(name), values_of(self.yard.metrics(name))

    def test_submitted_job_trains_to_success(self):
        name = self.submit(60, every_steps=20)
        watcher = Watcher(self.yard, name)
        job = self.succeed(name)
        self.assertEqual(job.step, 60)
        self.assertEqual(job.attempt, 1)
        self.assert_restarts(job, 0)
        points = self.yard.metrics(name)
        self.assertEqual([p.point.step for p in points], list(range(1, 61)))
        self.assertLess(points[-1].point.values["loss"], points[0].point.values["loss"])
        held_out = self.yard.metrics(name, run_pb.MetricPoint.VALIDATION)
        self.assertEqual([p.point.step for p in held_out], [60])
        checkpoints = self.yard.checkpoints(name)
        self.assertTrue(checkpoints[0].final)
        self.assertEqual(checkpoints[0].step, 60)
        for checkpoint in checkpoints:
            folder = checkpoint.uri.removeprefix("file://")
            self.assertTrue(os.path.exists(folder + "/manifest.json"), checkpoint.uri)
        self.assertTrue(watcher.join(20))
        self.assertEqual(watcher.missed(), 0)
        self.assertEqual(sorted(watcher.series()), list(range(1, 61)))

    def test_jobs_of_several_files_go_out_together(self):
        yard, folder = self.yard, pathlib.Path(self.yard.dir)
        job = {"spec": gpt(self.text, 30)}

        def write(name, *ids):  # JSON is YAML, but for the quotes of an enum
            jobs = [json.dumps(dict(job, job_id=i) if i else job).replace('"COSINE"', "COSINE") for i in ids]
            (folder / name).write_text("\n---\n".join(jobs) + "\n")
            return str(folder / name)
        single, sweep = write("single.yaml", "alone"), write("sweep.yaml", "first", "Bad Name", "alone", "second")
        done = yard.run("submit", single, sweep, "--set", "labels.team=batch")
        self.assertEqual(done.returncode, 2, done.stderr)  # of the first that was refused
        self.assertEqual(done.stdout, "submitted alone\nsubmitted first\nsubmitted second\n", done.stderr)
        self.assertRegex(done.stderr, f"{sweep}:3: job.job_id: found 'Bad Name'")
        self.assertRegex(done.stderr, f"{sweep}:5: projects/default/jobs/alone exists already")
        for name in ("alone", "first", "second"):
            ended = self.succeed("projects/default/jobs/" + name)
            self.assertEqual(ended.labels["team"], "batch")
        # All at once: the exit code of the first, names alone, lists.
        self.assertEqual(yard.run("submit", single, write("other.yaml", "other"), "-o", "name").returncode, 6)
        listed = json.loads(yard.call("submit", write("more.yaml", "", ""), "-o", "json"))
        self.assertEqual(len({made["name"] for made in listed}), 2)
        # More than one call holds.
        many = write("many.yaml", *(f"dry-{i}" for i in range(300)))
        self.assertEqual(yard.call("submit", "--validate-only", many).split("\n")[-2], "dry-299 is valid")
        for option in (["--name", "a"], ["--follow"], ["--request-id", "r"]):
            refused = yard.run("submit", sweep, *option)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(f"{option[0]} is for one job, and these are 4", refused.stderr)
        # What cannot be read sends nothing.
        (folder / "wrong.yaml").write_text("spek: {}\n")
        self.assertEqual(yard.run("submit", write("good.yaml", "good"), str(folder / "wrong.yaml")).returncode, 2)
        self.assertEqual(yard.run("get", "good").returncode, 3)

    def test_cancel_leaves_no_process(self):
        name = self.submit(100000)
        self.yard.wait_for_step(name, 5)
        pids = self.yard.training_pids()
        self.assertEqual(len(pids), 1)
        self.yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))
        self.yard.wait_for(name, resources_pb.CANCELLED)
        # CANCELLED is said only once the processes are proven gone.
        self.assertEqual(self.yard.training_pids(), [])
        self.assertFalse(os.path.exists(f"/proc/{pids[0]}"))

    def test_pause_and_resume_give_the_same_bits(self):
        digest, values = self.undisturbed(300)
        name = self.submit(300)
        self.yard.wait_for_step(name, 20)
        self.yard.api.job.PauseJob(jobs_pb.PauseJobRequest(name=name))
        paused = self.yard.wait_for(name, resources_pb.SUSPENDED)
        self.assertLess(paused.step, 300, "paused before its end")
        self.assertEqual(self.yard.training_pids(), [])
        self.assertEqual(self.yard.checkpoints(name)[0].step, paused.step)
        self.yard.api.job.ResumeJob(jobs_pb.ResumeJobRequest(name=name))
        job = self.succeed(name)
        self.assertEqual(job.attempt, 2)
        self.assert_restarts(job, 0, "a pause spends no restart")
        self.assertEqual(self.yard.final_digest(name), digest)
        self.assertEqual(values_of(self.yard.metrics(name)), values)

    def test_drained_node_gives_its_job_away_without_loss(self):
        digest, values = self.undisturbed(300)
        name = self.submit(300)
        self.yard.wait_for_step(name, 20)
        node = self.yard.api.node.ListNodes(run_services_pb.ListNodesRequest()).nodes[0].name
        self.yard.api.node.DrainNode(run_services_pb.DrainNodeRequest(name=node))
        self.yard.wait_for(name, resources_pb.QUEUED)
        explained = self.yard.api.job.ExplainJob(jobs_pb.ExplainJobRequest(name=name))
        self.assertIn("drain", str(explained).lower())
        self.yard.api.node.UndrainNode(run_services_pb.UndrainNodeRequest(name=node))
        job = self.succeed(name)
        self.assert_restarts(job, 0)
        self.assertEqual(self.yard.final_digest(name), digest)
        self.assertEqual(values_of(self.yard.metrics(name)), values)

    def test_killed_worker_is_replaced_and_nothing_is_lost(self):
        digest, values = self.undisturbed(300, every_steps=25)
        name = self.submit(300, every_steps=25)
        watcher = Watcher(self.yard, name)
        self.yard.wait_for_step(name, 60)
        for pid in self.yard.training_pids():
            kill(pid)
        job = self.succeed(name)
        self.assert_restarts(job, 1)
        self.assertEqual(self.yard.final_digest(name), digest)
        self.assertEqual(values_of(self.yard.metrics(name)), values)
        self.assertTrue(watcher.join(20))
        self.assertEqual(watcher.missed(), 0)
        self.assertEqual({s: without_timings(v) for s, v in watcher.series().items()}, values)
        superseded = [p for p in self.yard.metrics(name, superseded=True) if p.superseded]
        self.assertTrue(all(p.attempt == 1 for p in superseded))

    def kill_worker_after(self, name, step):
        """kill -9 of what trains, once the store knows of `step`."""
        self.yard.wait_for_step(name, step)
        for pid in self.yard.training_pids():
            kill(pid)

    def test_non_finite_step_halts_the_job_and_is_named(self):
        spec = recommender(poisoned_clicks(self.yard.dir), 54, "HALT", every_steps=5)
        name = self.yard.submit(spec).name
        job = self.yard.wait_for(name, resources_pb.FAILED)
        self.assertEqual(job.reason.code, "NON_FINITE")
        self.assertEqual(job.failure.category, run_pb.Failure.NUMERIC)
        self.assertFalse(job.failure.retryable)
        self.assert_restarts(job, 0)
        self.assertIn('first non-finite value: op 0 matmul "bot_l.0" forward', job.failure.message)
        failed = int(job.failure.message.split("step ")[1].split(":")[0])
        self.assertEqual(max(values_of(self.yard.metrics(name))), failed - 1)
        explained = self.yard.run("explain", name)
        self.assertIn("ROLL_BACK", explained.stdout)

    def test_rollback_goes_on_at_once_and_gives_the_same_bits(self):
        clicks, runs = poisoned_clicks(self.yard.dir), []
        for disturbed in (False, True):
            # Some 20 epochs: the poison is met again and again.
            spec = recommender(clicks, 1000, "ROLL_BACK", every_steps=10)
            spec["training"]["max_rollbacks"] = 100
            name = self.yard.submit(spec).name
            watcher = Watcher(self.yard, name)
            if disturbed:
                for step in (150, 450, 750):
                    self.kill_worker_after(name, step)
            job = self.succeed(name)
            self.assertGreater(job.attempt, 15)
            self.assertEqual(job.failure.category, run_pb.Failure.NUMERIC)
            self.assertTrue(job.failure.rolled_back)
            self.assertIn("leaving out the data of", job.failure.message)
            if not disturbed:
                self.assert_restarts(job, 0, "a rollback spends no restart")
            self.assertTrue(watcher.join(20))
            self.assertEqual(watcher.missed(), 0)
            values = values_of(self.yard.metrics(name))
            self.assertEqual(sorted(values), list(range(1, 1001)))
            self.assertEqual({s: without_timings(v) for s, v in watcher.series().items()}, values)
            superseded = [p for p in self.yard.metrics(name, superseded=True) if p.superseded]
            self.assertTrue(superseded, "steps that were gone back from are kept apart")
            runs.append((self.yard.final_digest(name), values))
        self.assertEqual(runs[0], runs[1])

    def test_early_stop_and_best_checkpoint_outlive_a_killed_worker(self):
        runs = []
        for disturbed in (False, True):
            spec = gpt(self.text, 2000, every_steps=50, best={"metric": "accuracy"})
            spec["training"]["batch_size"] = 4
            spec["schedule"] = {"learning_rate": 0.5, "warmup_steps": 1000}  # learns, then falls apart
            spec["evaluation"] = {"every_steps": 20, "max_samples": 64,
                                  "early_stopping": {"metric": "loss", "patience": 12}}
            name = self.yard.submit(spec).name
            if disturbed:
                self.kill_worker_after(name, 50)
            job = self.succeed(name)
            self.assertEqual(job.reason.code, "STOPPED_EARLY")
            self.assertIn("early stopping: loss of the held-out split was not better", job.reason.message)
            self.assertLess(job.step, 2000)
            self.assert_restarts(job, 1 if disturbed else 0)
            best = self.yard.api.checkpoint.GetCheckpoint(
                run_services_pb.GetCheckpointRequest(name=name + "/checkpoints/best"))
            self.assertEqual(best.best_rank, 1)
            self.assertTrue(os.path.exists(best.uri.removeprefix("file://") + "/manifest.json"))
            held_out = values_of(self.yard.metrics(name, run_pb.MetricPoint.VALIDATION))
            self.assertEqual(best.metrics["accuracy"], max(v["accuracy"] for v in held_out.values()))
            newest = [c.step for c in self.yard.checkpoints(name)[:2]]
            self.assertNotIn(best.step, newest, "it would be kept for its age")
            self.assertIn("BEST", self.yard.call("checkpoints", name))
            runs.append((job.step, self.yard.final_digest(name), best.step, best.weights_sha256, held_out))
        self.assertEqual(runs[0], runs[1])

    def test_log_of_a_rank_can_be_read_while_it_runs_and_after(self):
        name = self.submit(100000)
        self.yard.wait_for_step(name, 5)
        stream = self.yard.api.log.TailLogs(run_services_pb.TailLogsRequest(job=name))
        for answer in stream:
            self.assertEqual(answer.attempt, 1)
        self.yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))
        self.yard.wait_for(name, resources_pb.CANCELLED)
        list(self.yard.api.log.TailLogs(run_services_pb.TailLogsRequest(job=name, follow=True)))

    def second_agent(self, node, state, server=None, **environment):
        """Another agent of this yard, called `node`; what it says is in {state}.log."""
        with open(state + ".log", "wb") as log:
            return subprocess.Popen(
                [str(BIN / "trainyard-agent"), "--server", server or self.yard.address, "--node", node,
                 "--token-file", self.yard.dir + "/tokens/agent", "--state-dir", state, "--cpu-slots", "1",
                 "--threads-per-slot", "1", "--standby", "0"],
                env=dict(os.environ, TRAINYARD_YARD=self.yard.dir, **environment), stderr=log)

    def test_frozen_store_costs_no_worker_and_loses_nothing(self):
        def spec(steps):  # weights of a step that do not depend on the last one
            return gpt(self.text, steps, every_steps=500) | {"schedule": {"learning_rate": 1e-3}}
        name = self.yard.submit(spec(10000000)).name  # no machine reaches its end: it is cancelled
        self.yard.wait_for_step(name, 20)
        workers = self.yard.training_pids()
        self.assertEqual(len(workers), 1)
        waits = re.compile(r"the checkpoint of step (\d+) is written and waits")

        def steps_that_wait():
            return [int(step) for log in pathlib.Path(self.yard.dir).glob("agent/ranks/*/log")
                    for step in waits.findall(log.read_text())]
        store = self.yard.store_pids()
        for pid in store:
            os.kill(pid, signal.SIGSTOP)
        try:
            frozen = time.monotonic()
            # Longer than lease and margin together, and past the point where a checkpoint has to wait for the lease.
            eventually(lambda: time.monotonic() - frozen > 14 and steps_that_wait(),
                       seconds=60, what="a checkpoint that waits")
            self.assertEqual(self.yard.training_pids(), workers, "the store's absence is no reason to kill")
        finally:
            for pid in store:
                kill(pid, signal.SIGCONT)
        waited = max(steps_that_wait())
        eventually(lambda: any(c.step > waited for c in self.yard.checkpoints(name)), seconds=60,
                   what="a checkpoint after the one that waited")
        self.yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))
        job = self.yard.wait_for(name, resources_pb.CANCELLED)
        self.assertEqual(job.attempt, 1)
        self.assert_restarts(job, 0)
        newest = self.yard.checkpoints(name)[0]
        other = self.yard.submit(spec(newest.step)).name
        self.succeed(other)
        self.assertEqual(self.yard.final_digest(other), newest.weights_sha256)
        self.assertEqual(values_of(p for p in self.yard.metrics(name) if p.point.step <= newest.step),
                         values_of(self.yard.metrics(other)))

    def test_name_of_a_node_is_not_given_to_another_agent(self):
        digest, values = self.undisturbed(2000, every_steps=100)
        name = self.submit(2000, every_steps=100)
        self.yard.wait_for_step(name, 20)
        node = self.yard.api.node.ListNodes(run_services_pb.ListNodesRequest()).nodes[0].name.removeprefix("nodes/")
        other_state = self.yard.dir + "/agent2"
        other = self.second_agent(node, other_state)
        try:
            said = pathlib.Path(other_state + ".log")
            eventually(lambda: "is another agent" in said.read_text(), what="a refusal")
            self.assertEqual(len(self.yard.training_pids()), 1)
            self.assertEqual(self.yard.training_pids(other_state), [])
        finally:
            other.send_signal(signal.SIGINT)
            self.assertEqual(other.wait(20), 0)
        # The state directory is gone: whoever begins anew there is another agent, and waits until the lease is over.
        state = pathlib.Path(self.yard.dir, "agent")
        gone = state.rename(state.with_name("agent.gone"))
        kill(self.yard.pid("agent"))
        most = []

        def count():
            most.append(len(self.yard.training_pids()) + len(self.yard.training_pids(str(gone))))
            return most[-1]

        # The new agent cannot know what the old one left behind: the slot stays taken until somebody has looked.
        nodes = self.yard.api.node

        def lost():
            count()
            found = nodes.GetNode(run_services_pb.GetNodeRequest(name="nodes/" + node))
            return found.state == resources_pb.Node.READY and len(found.lost_ranks) == 1
        eventually(lost, seconds=60, what="a lost rank on a node that is ready")
        job = self.yard.get(name)
        self.assertEqual((job.state, job.attempt), (resources_pb.QUEUED, 1))
        explained = self.yard.api.job.ExplainJob(jobs_pb.ExplainJobRequest(name=name))
        self.assertIn("may still run rank 0 of attempt 1", str(explained.details))
        eventually(lambda: count() == 0, what="the worker without a folder ends")
        confirmed = nodes.ConfirmNodeEmpty(run_services_pb.ConfirmNodeEmptyRequest(name="nodes/" + node))
        self.assertEqual(len(confirmed.lost_ranks), 0)

        def succeeded():
            count()
            return self.yard.get(name).state == resources_pb.SUCCEEDED
        eventually(succeeded, seconds=60, what=f"{name} succeeds")
        self.assertLessEqual(max(most), 1, "two processes of one job")
        job = self.yard.get(name)
        self.assertEqual(job.attempt, 2)
        self.assert_restarts(job, 0, "the loss of a node is not the job's fault")
        self.assertEqual(self.yard.final_digest(name), digest)
        self.assertEqual(values_of(self.yard.metrics(name)), values)

    def test_job_whose_node_is_heard_of_again_goes_on_there(self):
        self.yard = Yard().__enter__()  # of its own: it keeps a node that is away
        self.addCleanup(self.yard.__exit__, None, None, None)
        steps = 100000  # more than any machine takes while a lease runs out: both jobs are cancelled
        nodes = self.yard.api.node
        first = nodes.ListNodes(run_services_pb.ListNodesRequest()).nodes[0].name
        nodes.DrainNode(run_services_pb.DrainNodeRequest(name=first))
        links = Links()
        link = links.make(int(self.yard.address.rsplit(":", 1)[1]))
        state = self.yard.dir + "/agent3"
        agent = self.second_agent("third", state, f"127.0.0.1:{link.port}")

        def values_until(name, step):
            self.yard.wait_for_step(name, step)
            self.yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))
            self.yard.wait_for(name, resources_pb.CANCELLED)
            values = values_of(point for point in self.yard.metrics(name) if point.point.step <= step)
            self.assertEqual(len(values), step)
            return values
        try:
            name = self.submit(steps, every_steps=1000)
            self.yard.wait_for_step(name, 20)
            workers = self.yard.training_pids(state)
            self.assertEqual(len(workers), 1)
            link.set("cut")
            self.yard.wait_for(name, resources_pb.QUEUED)
            self.assertEqual(self.yard.training_pids(state), workers, "it steps on without a lease")
            link.set("open")
            job = self.yard.wait_for(name, resources_pb.RUNNING)
            step = job.step + 100
            values = values_until(name, step)
            job = self.yard.get(name)
            self.assertEqual(job.attempt, 1)
            self.assert_restarts(job, 0)
            self.assertEqual(values_until(self.submit(steps, every_steps=1000), step), values)
        finally:
            nodes.UndrainNode(run_services_pb.UndrainNodeRequest(name=first))
            agent.send_signal(signal.SIGINT)
            self.assertEqual(agent.wait(20), 0)
            links.close()

    def test_job_that_goes_on_where_last_digits_differ_says_so(self):
        state = self.yard.dir + "/agent4"
        fourth = self.second_agent("fourth", state, ONEDNN_MAX_CPU_ISA="SSE41")
        nodes = self.yard.api.node
        try:
            eventually(lambda: len(nodes.ListNodes(run_services_pb.ListNodesRequest()).nodes) == 2)
            tell = {node.name: dict(node.slots[0].arithmetic.values)
                    for node in nodes.ListNodes(run_services_pb.ListNodesRequest()).nodes}
            narrow = tell.pop("nodes/fourth")
            (first, wide), = tell.items()
            self.assertEqual(narrow["oneDNN instructions"], "sse41")
            self.assertEqual({name for name in wide if wide[name] != narrow[name]}, {"oneDNN instructions"})
            self.assertIn("oneDNN instructions: sse41", self.yard.call("node", "get", "fourth"))

            nodes.DrainNode(run_services_pb.DrainNodeRequest(name="nodes/fourth"))
            name = self.submit(1000)
            watcher = Watcher(self.yard, name)
            self.yard.wait_for_step(name, 20)
            nodes.UndrainNode(run_services_pb.UndrainNodeRequest(name="nodes/fourth"))
            nodes.DrainNode(run_services_pb.DrainNodeRequest(name=first))
            self.succeed(name)
            self.assertTrue(watcher.join(20))
            told = [item.notice.notice.message for item in watcher.items if item.HasField("notice")]
            told = [message for message in told if "arithmetic" in message]
            self.assertEqual(len(told), 1, told)
            self.assertRegex(told[0], r"^after step \d+ the arithmetic is another")
            self.assertIn(f"oneDNN instructions: {wide['oneDNN instructions']} before, sse41 now", told[0])
        finally:
            for node in nodes.ListNodes(run_services_pb.ListNodesRequest()).nodes:
                nodes.UndrainNode(run_services_pb.UndrainNodeRequest(name=node.name))
            fourth.send_signal(signal.SIGINT)
            self.assertEqual(fourth.wait(20), 0)

    def test_gang_is_placed_on_two_agents_all_or_none(self):
        spec = gpt(self.text, 40)
        spec["resources"] = {"min_slots": 2, "device": "CPU"}
        with self.assertRaises(grpc.RpcError) as refused:
            self.yard.submit(spec)
        self.assertIn("min_slots of at most 1 would fit", refused.exception.details())
        state = self.yard.dir + "/agent2"
        second = self.second_agent("second", state)
        try:
            nodes = self.yard.api.node
            eventually(lambda: len(nodes.ListNodes(run_services_pb.ListNodesRequest()).nodes) == 2)
            nodes.DrainNode(run_services_pb.DrainNodeRequest(name="nodes/second"))
            name = self.yard.submit(spec).name
            explained = self.yard.api.job.ExplainJob(jobs_pb.ExplainJobRequest(name=name))
            self.assertEqual(explained.job.state, resources_pb.QUEUED, explained)
            self.assertIn("1 draining or leaving", explained.reason.message)
            self.assertEqual(self.yard.training_pids(), [], "no part of a gang starts alone")
            watcher = Watcher(self.yard, name)
            nodes.UndrainNode(run_services_pb.UndrainNodeRequest(name="nodes/second"))
            job = self.succeed(name)
            self.assert_restarts(job, 0)
            self.assertTrue(watcher.join(20))
            placed = [sorted(item.attempt_started.nodes) for item in watcher.items
                      if item.HasField("attempt_started")]
            self.assertTrue(all(len(n) == 2 and "second" in str(n) for n in placed), placed)
        finally:
            second.send_signal(signal.SIGINT)
            self.assertEqual(second.wait(20), 0)
        self.assertEqual(self.yard.training_pids() + self.yard.training_pids(state), [])

    def test_gang_gives_the_bits_of_one_slot_whichever_rank_is_killed_or_paused(self):
        spec = gpt(self.text, 600, every_steps=20)  # so many that it cannot end before it is paused
        spec["parallel"] = {"logical_ranks": 4}
        alone = self.yard.submit(spec).name
        self.succeed(alone)
        state = self.yard.dir + "/agent2"
        second = self.second_agent("second", state)
        try:
            nodes = self.yard.api.node
            eventually(lambda: len(nodes.ListNodes(run_services_pb.ListNodesRequest()).nodes) == 2)
            spec["resources"] = {"min_slots": 2, "device": "CPU"}
            name = self.yard.submit(spec).name
            for attempt, (step, folder) in enumerate(((40, None), (90, state)), start=1):
                def trains():  # the step alone may be one of the attempt before
                    job = self.yard.get(name)
                    return job.attempt == attempt and job.state == resources_pb.RUNNING and job.step >= step
                eventually(trains, 60, f"step {step} of attempt {attempt}")
                for pid in self.yard.training_pids(folder):
                    kill(pid)
            self.yard.wait_for_step(name, 120)
            self.assertEqual(self.yard.run("pause", name).returncode, 0)
            self.yard.wait_for(name, resources_pb.SUSPENDED)
            self.assertEqual(self.yard.run("resume", name).returncode, 0)
            job = self.succeed(name)
            self.assert_restarts(job, 2)
            self.assertEqual(self.yard.final_digest(name), self.yard.final_digest(alone))
            self.assertEqual(values_of(self.yard.metrics(name)), values_of(self.yard.metrics(alone)))
        finally:
            second.send_signal(signal.SIGINT)
            self.assertEqual(second.wait(20), 0)
        self.assertEqual(self.yard.training_pids() + self.yard.training_pids(state), [])

    def test_ranks_of_a_gang_are_seen_with_their_metrics_and_logs(self):
        spec = gpt(self.text, 100000, every_steps=20)
        spec["parallel"] = {"logical_ranks": 2}
        spec["resources"] = {"min_slots": 2, "device": "CPU"}
        state = self.yard.dir + "/agent2"
        second = self.second_agent("second", state)
        try:
            nodes = self.yard.api.node
            eventually(lambda: len(nodes.ListNodes(run_services_pb.ListNodesRequest()).nodes) == 2)
            name = self.yard.submit(spec).name
            query = run_services_pb.QueryMetricsRequest(job=name, ranks=True)
            told = eventually(lambda: list(self.yard.api.metric.QueryMetrics(query).points)[1:], 60)
            self.assertEqual(told[0].point.values["ranks.count"], 2)
            self.assertNotIn("ranks.refused", told[0].point.values)
            for rank in (0, 1):
                self.assertGreater(told[0].point.values[f"rank.{rank}.compute_ms"], 0)
                self.assertGreater(told[0].point.values[f"rank.{rank}.memory_bytes"], 1 << 20)
            self.assertFalse([k for k in self.yard.metrics(name)[0].point.values if k.startswith("rank")])
            gang = self.yard.api.job.GetGang(jobs_pb.GetGangRequest(name=name))
            self.assertEqual(["RUNNING"] * 2, [gang.Rank.State.Name(r.state) for r in gang.ranks])
            self.assertGreater(gang.ranks[1].step, 0)
            shown = self.yard.call("get", name)
            table = self.yard.call("metrics", name, "--ranks")
            for rank in gang.ranks:
                self.assertIn(rank.node.removeprefix("nodes/"), shown)
                self.assertIn(rank.node.removeprefix("nodes/"), table)
            self.assertIn("slowest: rank", table)
            # Rank 0 is killed, and rank 1 with it, before or after it says why: what it printed is read from its
            # node, also later.
            first = next(r.node for r in gang.ranks if r.rank == 0)
            for pid in self.yard.training_pids(state if first == "nodes/second" else None):
                kill(pid)
            eventually(lambda: self.yard.get(name).attempt == 2, 60)
            self.yard.wait_for(name, resources_pb.RUNNING)
            alone = self.yard.call("logs", name, "--rank", "1", "--attempt", "1")
            self.assertIn("rank 1 of 2, attempt 1: trains on cpu", alone)
            both = self.yard.call("logs", name, "--rank", "all", "--attempt", "1").splitlines()
            self.assertIn("[1] " + alone.splitlines()[-1], both)
            self.assertTrue(all(line.startswith(("[0] ", "[1] ")) for line in both), both)
            wrong = self.yard.run("logs", name, "--rank", "0-2")
            self.assertIn("the attempt has 2 ranks, 0 to 1", wrong.stderr)
            self.assertEqual(wrong.returncode, 2)
            self.yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))
            followed = self.yard.call("logs", name, "--rank", "all", "--attempt", "1", "--follow")
            self.assertEqual(sorted(both), sorted(followed.splitlines()))
            self.yard.wait_for(name, resources_pb.CANCELLED)
            self.assertEqual(self.yard.run("logs", name, "--rank", "all", "--follow").returncode, 0)
        finally:
            second.send_signal(signal.SIGINT)
            self.assertEqual(second.wait(20), 0)
        self.assertEqual(self.yard.training_pids() + self.yard.training_pids(state), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
