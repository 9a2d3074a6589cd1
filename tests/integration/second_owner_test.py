#!/usr/bin/python3
"""A gang of which every rank has the whole state, or a share that another one has, too (parallel.second_owner), on nodes of
one slot, real programs. Whoever is killed, the others keep the state in memory: at most the step is made again in which that
happened, and losses and weights are those of a run that nobody disturbed."""
import os
import random
import signal
import time
import unittest

from elastic_test import ENDLESS, ElasticCase
from replicas import MovingWatcher
from yard import eventually, kill, resources_pb, values_of


class SecondOwnerTest(ElasticCase):
    shares = {}

    def setUp(self):
        super().setUp()
        self.random = random.Random(int(os.environ.get("TRAINYARD_SEED", 7)))

    def job(self, steps, **resources):
        spec = self.elastic(steps, **{"min_slots": 2, "max_slots": self.agents} | resources)
        spec["checkpoint"]["every_steps"] = 1000
        spec["retry"] = {"max_restarts": 1000, "backoff_seconds": 0.05}
        if spec["resources"]["max_slots"] > 1:
            spec["parallel"] |= {"second_owner": True, **self.shares}
        return spec

    def lost_steps(self, watcher):
        """Of each attempt but the first: how many steps were known when it began that it made again."""
        lost, newest = [], None
        for item in list(watcher.items):
            if item.HasField("metrics"):
                newest = max(newest, item.metrics.step)
            if item.HasField("attempt_started"):
                if newest is not None:
                    lost.append(newest - item.attempt_started.step)
                newest = item.attempt_started.step
        return lost

    def test_a_lost_rank_or_node_costs_at_most_the_step_it_was_in(self):
        name = self.yard.submit(self.job(ENDLESS)).name
        watcher = MovingWatcher(self.yard, name)
        job = self.runs_on(name, self.agents)
        for signal_ in (signal.SIGKILL, signal.SIGKILL, signal.SIGABRT, signal.SIGKILL):
            time.sleep(self.random.uniform(0, 0.2))  # to a random moment of a step
            kill(self.random.choice(self.yard.training_pids()), signal_)
            attempt = job.attempt
            # Metrics of before the kill may yet arrive, as of a job that goes on.
            eventually(lambda: self.yard.get(name).attempt > attempt, 60, "another attempt")
            job = self.runs_on(name, self.agents)
        self.yard.cut_power(self.random.randrange(self.agents))
        job = self.runs_on(name, self.agents - 1)

        resume_at = self.checkpoint_after(name, job.step)
        self.cancel(name)
        alone = self.yard.submit(self.job(resume_at.step, min_slots=1, max_slots=1)).name
        self.yard.wait_for(alone, resources_pb.SUCCEEDED, 300)
        self.assertEqual(resume_at.weights_sha256, self.yard.final_digest(alone))
        values = values_of(self.yard.metrics(name))
        self.assertEqual({step: values[step] for step in range(1, resume_at.step + 1)},
                         values_of(self.yard.metrics(alone)))
        lost = self.lost_steps(watcher)
        self.assertGreaterEqual(len(lost), 5, lost)  # and perhaps attempts on other numbers of slots
        self.assertLessEqual(max(lost), 1, lost)


class SharesTest(SecondOwnerTest):
    """Two ranks have each half."""
    agents = 4
    shares = {"shard": "OPTIMIZER", "logical_ranks": 4}

    def elastic(self, steps, **resources):
        spec = super().elastic(steps, **resources)
        spec["training"]["batch_size"] = 8
        spec["parallel"] = {"logical_ranks": 4}
        return spec


if __name__ == "__main__":
    unittest.main(verbosity=2)
