#!/usr/bin/python3
"""A yard that is restored from a backup, as deploy/README.md says: PostgreSQL from a base backup and its log, to a point in
time, while agents and workers of the lost time live on."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from links import free_port  # noqa: E402
from replicas import MovingWatcher  # noqa: E402
from secured import JoinedReplicas  # noqa: E402
from store import Postgres, as_postgres  # noqa: E402
from yard import BIN, eventually, gpt, grpc, jobs_pb, resources_pb, text_file  # noqa: E402


class BackedUp(JoinedReplicas):
    """Its PostgreSQL archives its log, and its servers write down what is revoked."""

    def _store(self):
        self.backup = f"{self.dir}/backup"
        self.archive = f"{self.backup}/wal"
        for folder in (self.backup, self.archive):
            os.makedirs(folder)
            if os.geteuid() == 0:
                shutil.chown(folder, "postgres")
        return Postgres(self.dir + "/store", free_port(), archive_mode="on", wal_level="replica",
                        archive_command=f"test ! -f {self.archive}/%f && cp %p {self.archive}/%f")

    def _server(self, i, port):
        part = super()._server(i, port)
        part._command += ["--revocations", self.revocations(i)]
        return part

    def revocations(self, i):
        return f"{self.dir}/revocations-{i}"

    def back_up(self, folder):
        subprocess.run(as_postgres("pg_basebackup", "-D", str(folder), "-X", "fetch", "-c", "fast", "-h", "127.0.0.1", "-p",
                                   str(self.store.port), "-U", "postgres"), check=True, cwd="/", stdout=subprocess.DEVNULL)

    def bring_back(self, folder, point):
        """PostgreSQL as it was at the restore point, from the base backup and the archive."""
        shutil.rmtree(self.store.data)
        subprocess.run(as_postgres("cp", "-a", str(folder), str(self.store.data)), check=True, cwd="/")
        subprocess.run(as_postgres("touch", f"{self.store.data}/recovery.signal"), check=True, cwd="/")
        self.store.settings.update(restore_command=f"cp {self.archive}/%f %p", recovery_target_name=point,
                                   recovery_target_action="promote")
        self.store.start()
        eventually(lambda: self.store.query("SELECT pg_is_in_recovery()") == "f", 60, "the end of the recovery")

    def restore(self, *arguments):
        return self.run("restore", "--database", self.database(0), "--checkpoint-root", self.dir + "/checkpoints", *arguments,
                        program=BIN / "trainyard-server")

    def with_token(self, path):
        return self.run("--server", self.addresses[0], "--ca-file", self.ca, "--token-file", path, "ps", "--patience", "0")


def step_of(checkpoints):
    return max((c.step for c in checkpoints), default=0)


class BackupTest(unittest.TestCase):
    def test_restored_yard_goes_on_with_what_exists_and_nobody_who_was_revoked_comes_back(self):
        with BackedUp(servers=2, agents=3) as yard:
            data = text_file(yard.dir)
            ended = yard.submit(gpt(data, 40, every_steps=20)).name
            long = gpt(data, 1000000, every_steps=100)
            yard.wait_for(ended, resources_pb.SUCCEEDED)
            feed, points = yard.get(ended), yard.metrics(ended)
            digest = yard.final_digest(ended)
            runs = yard.submit(long).name
            tokens = {}
            for name in ("stays", "goes"):
                made = yard.admin("admin", "token", "create", f"user:{name}", "--role", "submitter", "--in", "default", "--to",
                                  f"{yard.dir}/{name}")
                self.assertEqual(made.returncode, 0, made.stderr)
                tokens[name] = made.stderr.split(":")[0]
            yard.wait_for_step(runs, 150)
            folder = pathlib.Path(yard.backup, "base")
            yard.back_up(folder)
            known = step_of(yard.checkpoints(runs))
            yard.store.query("SELECT pg_create_restore_point('before')")

            # What the backup does not know.
            heads = pathlib.Path(yard.dir, "heads-0")
            told = heads.stat().st_size if heads.exists() else 0
            busy = {agent for agent, _, _ in yard.workers()}
            idle = next(i for i in range(3) if i not in busy)
            for command in (("admin", "token", "revoke", tokens["goes"]), ("node", "revoke", f"node-{idle}")):
                done = yard.admin(*command)
                self.assertEqual(done.returncode, 0, (command, done.stderr))
            later = yard.submit(gpt(data, 100000, every_steps=100)).name
            # Of the checkpoints that the backup knows none is left by then.
            eventually(lambda: min(c.step for c in yard.checkpoints(runs)) > known, 120, "newer checkpoints")
            # A server tells the head of its audit every ten seconds.
            eventually(lambda: heads.exists() and heads.stat().st_size > told, 30, "the head of the audit")
            yard.store.query("SELECT pg_switch_wal()")
            refused = yard.restore("--revoke-all")
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("a server works on this database", refused.stderr)

            # The machine of servers and PostgreSQL is lost; agents and workers are not.
            for part in yard.servers:
                part.stop(signal.SIGKILL)
            before = {pid for _, _, pid in yard.workers()}
            yard.store.stop()
            yard.bring_back(folder, "before")

            # A server does not take it for the yard that it served.
            server = yard.servers[0]
            server.start()
            self.assertEqual(server.process.wait(60), 1)
            self.assertIn("the database is older than what a server wrote", pathlib.Path(server._log).read_text())
            self.assertIn("--revocations or --revoke-all is needed", yard.restore().stderr)
            elsewhere = yard.run("restore", "--database", yard.database(0), "--checkpoint-root", yard.dir + "/nothing", "--revocations",
                                 yard.revocations(0), program=BIN / "trainyard-server")
            self.assertIn("--checkpoint-root: ", elsewhere.stderr)

            files = [word for i in (0, 1) if os.path.exists(yard.revocations(i)) for word in ("--revocations", yard.revocations(i))]
            done = yard.restore(*files)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("its epoch is 17", done.stdout)
            self.assertIn("of 1 what ran is fenced", done.stdout)
            self.assertIn("2 credentials revoked, and 1 join token.", done.stdout)
            self.assertIn(later.rpartition("/")[2], done.stdout)
            for part in yard.servers:
                part.wanted = True
                part.start()

            # The job goes on from a checkpoint that the backup did not know, with the bits of one that nobody disturbed.
            job = yard.wait_for(runs, resources_pb.RUNNING, 120)
            self.assertEqual(job.restarts, 0, job)
            again = yard.submit(long).name
            eventually(lambda: not before & {pid for _, _, pid in yard.workers()}, 60, "the end of what ran before")
            watchers = [MovingWatcher(yard, name) for name in (runs, again)]

            def common():
                """Steps of which both wrote a checkpoint, the first one since it was restored."""
                of = [{item.checkpoint.step: item.checkpoint.weights_sha256 for item in list(watcher.items)
                       if item.HasField("checkpoint")} for watcher in watchers]
                starts = [item.attempt_started.step for item in list(watchers[0].items) if item.HasField("attempt_started")]
                return len(starts) > 1 and [(step, of[0][step], of[1][step]) for step in of[0].keys() & of[1].keys()
                                            if step > starts[1]]
            for step, restored, undisturbed in eventually(common, 300, "both to come as far"):
                self.assertEqual(restored, undisturbed, step)
            for name in (runs, again):
                yard.api.job.CancelJob(jobs_pb.CancelJobRequest(name=name))
            for watcher in watchers:
                self.assertTrue(watcher.join(60))
                self.assertEqual(watcher.missed(), 0)
            starts = [item.attempt_started.step for item in watchers[0].items if item.HasField("attempt_started")]
            self.assertGreater(starts[1], known, starts)
            notices = [item.notice.notice.message for item in watchers[0].items if item.HasField("notice")]
            self.assertTrue(any("were made after it, and are kept" in notice for notice in notices), notices)

            # What had ended is as it was.
            self.assertEqual(yard.get(ended), feed)
            self.assertEqual(yard.metrics(ended), points)
            self.assertEqual(yard.final_digest(ended), digest)
            with self.assertRaises(grpc.RpcError) as gone:
                yard.get(later)
            self.assertEqual(gone.exception.code(), grpc.StatusCode.NOT_FOUND)

            # Whoever was revoked stays out.
            self.assertEqual(yard.with_token(f"{yard.dir}/stays").returncode, 0)
            self.assertEqual(yard.with_token(f"{yard.dir}/goes").returncode, 4)
            self.assertEqual(set(yard.connected_nodes()), {f"nodes/node-{i}" for i in range(3) if i != idle})
            self.assertIn("RestoreYard", yard.admin("audit", "list").stdout)


if __name__ == "__main__":
    unittest.main()
