#!/usr/bin/python3
"""A job that runs on any number of slots: three nodes of one slot, real programs. It starts on the slot that is free,
grows, gives a slot to a job that waits, moves off a drained node, is resized by its user, loses a node, and has the
losses and weights of a run of as many steps that nobody disturbed."""
import os
import random
import signal
import time
import unittest

from replicas import MovingWatcher, Replicas
from yard import ENDED, eventually, gpt, grpc, jobs_pb, kill, resources_pb, run_services_pb, text_file, values_of

ENDLESS = 1000000  # steps


class ElasticYard(Replicas):
    """One server that lets jobs grow soon, and agents of one slot."""

    def __init__(self, agents):
        super().__init__(servers=1, agents=agents)

    def _server(self, i, port):
        part = super()._server(i, port)
        part._command += ["--grow-after-ms", "300", "--most-growths", "20"]
        return part

    def cut_power(self, node):
        """Of the machine of an agent: nothing of it lives on."""
        self.agents[node].stop(signal.SIGKILL)
        for agent, _, pid in self.workers():
            if agent == node:
                kill(pid)


class ElasticCase(unittest.TestCase):
    agents = 3

    def setUp(self):
        self.yard = self.enterContext(ElasticYard(self.agents))
        self.text = text_file(self.yard.dir)

    def elastic(self, steps, **resources):
        spec = gpt(self.text, steps, every_steps=100)
        spec["training"]["batch_size"] = 9
        spec["schedule"] = {"learning_rate": 1e-3, "warmup_steps": 20}  # one that does not depend on the last step
        spec["parallel"] = {"logical_ranks": 3}
        spec["resources"] = {"min_slots": 1, "max_slots": 3, "device": "CPU", **resources}
        return spec

    def endless(self, slots, **job):
        """A job that holds so many slots until it is cancelled."""
        spec = gpt(self.text, ENDLESS)
        spec["resources"] = {"min_slots": slots, "device": "CPU"}
        return self.yard.submit(spec, **job).name

    def cancel(self, name):
        self.yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))

    def runs_on(self, name, slots, seconds=60):
        def reached():
            job = self.yard.get(name)
            self.assertNotIn(job.state, ENDED, job)
            running = job.state == resources_pb.RUNNING and job.reason.code == "RUNNING"
            return job if running and job.slots == slots else None
        job = eventually(reached, seconds, f"{name} to run on {slots} slots")
        self.yard.wait_for_step(name, job.step + 20)
        return self.yard.get(name)

    def checkpoint_after(self, name, step):
        """The first one that is seen of a later step."""
        return eventually(lambda: [c for c in self.yard.checkpoints(name) if c.step > step], 60,
                          f"a checkpoint of {name} after step {step}")[-1]

    def compare_with_undisturbed(self, name, saved, spec, said=None):
        """`spec` makes the steps up to the checkpoint `saved` of the job."""
        alone = self.yard.submit(spec).name
        self.yard.wait_for(alone, resources_pb.SUCCEEDED, 300)
        self.assertEqual(saved.weights_sha256, self.yard.final_digest(alone), said)
        values = values_of(self.yard.metrics(name))
        self.assertEqual({step: values[step] for step in range(1, saved.step + 1)}, values_of(self.yard.metrics(alone)),
                         said)


class LeavingTest(ElasticCase):
    """Agents that are asked to leave (SIGTERM, as before a machine goes) give away what runs there."""

    def setUp(self):
        super().setUp()
        self.yard.parts = self.yard.servers  # agents that end are not started again
        for agent in self.yard.agents:
            agent.stop(signal.SIGINT)
            agent._command += ["--leave-grace", "60"]
            agent.start()
        eventually(lambda: len(self.yard.connected_nodes()) == self.agents, 30, "the agents")

    def leave(self, agent):
        """Returns how long it took."""
        begun = time.monotonic()
        self.yard.agents[agent].send(signal.SIGTERM)
        self.assertEqual(self.yard.agents[agent].process.wait(30), 0)
        self.assertEqual([rank for rank in self.yard.workers() if rank[0] == agent], [])
        return time.monotonic() - begun

    def test_jobs_go_on_elsewhere_and_nothing_is_lost(self):
        name = self.yard.submit(self.elastic(ENDLESS)).name
        watcher = MovingWatcher(self.yard, name)
        self.runs_on(name, 3)
        self.assertLess(self.leave(1), 15)
        job = self.runs_on(name, 2)
        self.assertLess(self.leave(0), 15)
        self.runs_on(name, 1)
        # The last node: the job writes a checkpoint and waits.
        self.assertLess(self.leave(2), 15)
        job = self.yard.wait_for(name, resources_pb.QUEUED)
        self.assertEqual(job.restarts, 0)
        left_at = job.step
        saved = max(self.yard.checkpoints(name), key=lambda checkpoint: checkpoint.step)
        self.assertEqual(saved.step, left_at)
        self.yard.agents[1].start()
        job = self.runs_on(name, 1)
        self.assertGreater(job.step, left_at)
        self.cancel(name)
        self.assertEqual(self.yard.wait_for(name, resources_pb.CANCELLED).restarts, 0)
        self.compare_with_undisturbed(name, saved, self.elastic(saved.step, max_slots=1))
        self.assertTrue(watcher.join(20))
        self.assertEqual(watcher.missed(), 0)
        told = " ".join(item.state.reason.message for item in watcher.items if item.HasField("state"))
        self.assertIn("nodes/node-1 leaves", told)

    def test_a_node_without_work_leaves_at_once(self):
        self.assertLess(self.leave(0), 2)


class ElasticTest(ElasticCase):
    def test_an_elastic_job_grows_and_shrinks_and_keeps_the_same_bits(self):
        blocker = self.endless(2)
        self.yard.wait_for(blocker, resources_pb.RUNNING)

        name = self.yard.submit(self.elastic(ENDLESS)).name
        watcher = MovingWatcher(self.yard, name)
        job = self.runs_on(name, 1)
        self.assertEqual((job.min_slots, job.max_slots), (1, 3))
        self.cancel(blocker)
        self.runs_on(name, 3)

        other = self.endless(1)
        self.yard.wait_for(other, resources_pb.RUNNING)
        self.runs_on(name, 2)

        resize = jobs_pb.ResizeJobRequest(name=name, max_slots=1)
        self.yard.api.job.ResizeJob(resize)
        self.runs_on(name, 1)
        self.yard.api.job.ResizeJob(jobs_pb.ResizeJobRequest(name=name, max_slots=3))
        self.runs_on(name, 2)

        nodes = next(list(item.attempt_started.nodes) for item in reversed(watcher.items)
                     if item.HasField("attempt_started"))
        drained = int(nodes[0].removeprefix("node-"))
        api = self.yard.api.node
        api.DrainNode(run_services_pb.DrainNodeRequest(name=f"nodes/node-{drained}"))
        self.runs_on(name, 1)
        api.UndrainNode(run_services_pb.UndrainNodeRequest(name=f"nodes/node-{drained}"))
        self.runs_on(name, 2)
        self.yard.cut_power(drained)
        job = self.runs_on(name, 1)

        saved = self.checkpoint_after(name, job.step)
        self.cancel(name)
        self.cancel(other)
        # A rank of it may still run there, for all that anybody knows who did not cut the power.
        api.ConfirmNodeEmpty(run_services_pb.ConfirmNodeEmptyRequest(name=f"nodes/node-{drained}"))
        job = self.yard.wait_for(name, resources_pb.CANCELLED)
        self.assertEqual(job.restarts, 0)
        self.compare_with_undisturbed(name, saved, self.elastic(saved.step, max_slots=1))
        self.assertTrue(watcher.join(20))
        self.assertEqual(watcher.missed(), 0)
        # To its users it has run all the time, but for the loss of a node.
        states = [item.state.to for item in watcher.items if item.HasField("state")]
        self.assertNotIn(resources_pb.SUSPENDING, states)
        self.assertEqual(states.count(resources_pb.QUEUED), 2, states)
        # It takes its state along in memory, also from a node that is drained.
        saved_at = {item.checkpoint.step for item in watcher.items if item.HasField("checkpoint")}
        begun_at = [item.attempt_started.step for item in watcher.items if item.HasField("attempt_started")]
        in_memory = [step for step in begun_at if step > 0 and step not in saved_at]
        self.assertGreaterEqual(len(in_memory), 5, (begun_at, sorted(saved_at)))
        went_on = [item.state.reason.message for item in watcher.items
                   if item.HasField("state") and item.state.reason.code == "RUNNING"]
        self.assertEqual(went_on[1:], [f"goes on from step {step}" for step in begun_at[1:]])
        told = [item.state.reason.message for item in watcher.items
                if item.HasField("state") and item.state.reason.code == "RESIZING"]
        self.assertEqual(len(told), 6, told)
        for message, words in zip(told, ("resized 1 -> 3: no waiting job could use 2 more", "resized 3 -> 2: job ",
                                         "resized 2 -> 1: it was asked to take at most 1",
                                         "resized 1 -> 2: no waiting job could use 1 more",
                                         "resized 2 -> 1: nodes/node-", "resized 1 -> 2: no waiting")):
            self.assertIn(words, message)


class ResizedUnderKillsTest(ElasticCase):
    def test_whatever_is_killed_while_a_job_is_resized_its_bits_stay(self):
        """Its state is in memory then, in the hands of an agent."""
        seed = int(os.environ.get("TRAINYARD_SEED", 7))
        draw = random.Random(seed)
        name = self.yard.submit(self.elastic(ENDLESS, max_slots=1)).name
        watcher = MovingWatcher(self.yard, name)
        job = self.runs_on(name, 1)
        slots, harmed = 1, 0
        for _ in range(12):
            slots = draw.choice([n for n in (1, 2, 3) if n != slots])
            self.yard.api.job.ResizeJob(jobs_pb.ResizeJobRequest(name=name, min_slots=slots, max_slots=slots))
            time.sleep(draw.uniform(0, 0.15))  # to a random moment of the resize
            pids = draw.choice([[], self.yard.training_pids(), [self.yard.agents[draw.randrange(3)].pid]])
            if pids and pids[0] is not None:
                harmed += kill(draw.choice(pids))
            job = self.runs_on(name, slots)
        saved = self.checkpoint_after(name, job.step)
        self.cancel(name)
        self.yard.wait_for(name, resources_pb.CANCELLED)
        said = f"TRAINYARD_SEED={seed}, {harmed} killed"
        self.compare_with_undisturbed(name, saved, self.elastic(saved.step, max_slots=1), said)
        self.assertTrue(watcher.join(20))
        self.assertEqual(watcher.missed(), 0)
        saved_at = {item.checkpoint.step for item in watcher.items if item.HasField("checkpoint")}
        begun_at = [item.attempt_started.step for item in watcher.items if item.HasField("attempt_started")]
        self.assertTrue([step for step in begun_at if step > 0 and step not in saved_at], (said, begun_at, saved_at))


class ElasticGroupsTest(ElasticCase):
    agents = 4

    def test_groups_that_share_layers_come_and_go_as_a_whole(self):
        def grouped(steps, **resources):
            spec = self.elastic(steps, min_slots=2, **{"max_slots": 4} | resources)
            spec["training"]["batch_size"] = 4
            spec["parallel"] = {"logical_ranks": 2, "tensor": 2, "layout": {"tensor": 2}}
            return spec
        blocker = self.endless(1)
        self.yard.wait_for(blocker, resources_pb.RUNNING)
        name = self.yard.submit(grouped(ENDLESS)).name
        self.runs_on(name, 2)
        self.cancel(blocker)
        self.runs_on(name, 4)
        other = self.endless(1)
        self.yard.wait_for(other, resources_pb.RUNNING)
        self.runs_on(name, 2)
        with self.assertRaises(grpc.RpcError) as refused:
            self.yard.api.job.ResizeJob(jobs_pb.ResizeJobRequest(name=name, max_slots=3))
        self.assertEqual(refused.exception.details(),
                         "max_slots: found 3, expected a multiple of 2 (parallel.layout) up to 4")
        self.cancel(other)
        job = self.runs_on(name, 4)
        saved = self.checkpoint_after(name, job.step)
        self.cancel(name)
        self.yard.wait_for(name, resources_pb.CANCELLED)
        self.compare_with_undisturbed(name, saved, grouped(saved.step, max_slots=2))


class LayoutsTest(ElasticCase):
    agents = 4

    def test_a_running_job_takes_another_layout_and_keeps_the_same_bits(self):
        def cut(steps, slots):
            spec = self.elastic(steps, min_slots=slots, max_slots=slots)
            spec["training"]["batch_size"] = 4
            spec["parallel"] = {"logical_ranks": 2, "tensor": 2, "pipeline": 2}
            return spec
        name = self.yard.submit(cut(ENDLESS, 2)).name
        watcher = MovingWatcher(self.yard, name)
        job = self.runs_on(name, 2)
        changes = (
            {"layout": {"tensor": 2}},
            {"layout": {"tensor": 2, "pipeline": 2}, "min_slots": 4, "max_slots": 4},
            {"layout": {"pipeline": 2}},
            {"layout": {"tensor": 1}, "min_slots": 2, "max_slots": 2, "shard": "OPTIMIZER"},
            {"min_slots": 1, "max_slots": 1},
            {"shard": "NONE", "min_slots": 2, "max_slots": 2},
        )
        for number, change in enumerate(changes, 2):
            asked = self.yard.api.job.ResizeJob(jobs_pb.ResizeJobRequest(name=name, **change))
            self.assertEqual(asked.spec, job.spec)
            eventually(lambda: self.yard.get(name).attempt == number, 60, f"attempt {number} of {name}")
            job = self.runs_on(name, asked.max_slots)
            gang = self.yard.api.job.GetGang(jobs_pb.GetGangRequest(name=name))
            self.assertEqual((gang.layout, gang.shard), (job.layout, job.shard))
            layout = change.get("layout", {})
            if layout:
                self.assertEqual((max(1, job.layout.tensor), max(1, job.layout.pipeline)),
                                 (layout.get("tensor", 1), layout.get("pipeline", 1)))
        self.assertEqual((job.attempt, job.restarts), (1 + len(changes), 0))
        saved = self.checkpoint_after(name, job.step)
        self.cancel(name)
        self.yard.wait_for(name, resources_pb.CANCELLED)
        self.compare_with_undisturbed(name, saved, cut(saved.step, 1))
        self.assertTrue(watcher.join(20))
        self.assertEqual(watcher.missed(), 0)
        notices = [item.notice.notice.message for item in watcher.items if item.HasField("notice")]
        told = [notice for notice in notices if "layout" in notice]
        self.assertEqual(told[0], "takes 2 slots in the layout tensor 2, pipeline 1, shard NONE from now on, as user:admin asked; "
                                  "it was 2 slots in another layout")


if __name__ == "__main__":
    unittest.main(verbosity=2)
