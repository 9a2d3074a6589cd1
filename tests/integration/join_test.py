#!/usr/bin/python3
"""Machines that join a yard as nodes: by a token, once, then by the certificate that they got; and are turned away."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from replicas import MovingWatcher  # noqa: E402
from links import free_port  # noqa: E402
from secured import JoinedReplicas, SecuredReplicas  # noqa: E402
from yard import BIN, eventually, gpt, resources_pb, run_services_pb, text_file  # noqa: E402


class Stranger:
    """An agent that nobody wants: `with Stranger(yard, "name", ...) as agent:`; its log says why."""

    def __init__(self, yard, name, *arguments, state=None, server=None):
        self.environment = yard.environment
        self.state = state or f"{yard.dir}/{name}-{time.monotonic_ns()}"
        self.log = pathlib.Path(self.state + ".log")
        self.command = [str(BIN / "trainyard-agent"), "--server", server or f"127.0.0.1:{yard.agents_ports[0]}", "--node",
                        name, "--state-dir", self.state, "--cpu-slots", "1", *arguments]

    def __enter__(self):
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=out)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)

    def says(self, words):
        try:
            eventually(lambda: words in self.log.read_text(), 30)
        except AssertionError:
            raise AssertionError(f"not within 30 s: {words} in\n{self.log.read_text()}") from None


class JoinTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.yard = JoinedReplicas().__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.yard.__exit__(None, None, None)
        assert not cls.yard.processes(), cls.yard.processes()

    def node(self, name):
        return self.yard.api.node.GetNode(run_services_pb.GetNodeRequest(name="nodes/" + name))

    def test_gang_trains_over_nodes_that_joined_and_outlives_a_server_and_the_token(self):
        yard = self.yard
        self.assertEqual(dict(self.node("node-0").labels), {"pool": "first"})
        spec = gpt(text_file(yard.dir), 300, every_steps=50)
        spec["parallel"], spec["resources"] = {"logical_ranks": 2}, {"min_slots": 2}
        name = yard.submit(spec).name
        watcher = MovingWatcher(yard, name)
        eventually(lambda: yard.training_pids(), 60, "ranks to run")
        token = pathlib.Path(yard.join_token).read_text()
        os.remove(yard.join_token)  # it is not needed any more
        server = eventually(lambda: yard.server_of(0) is not None and (yard.server_of(0),), 30, "a session")[0]
        yard.servers[server].send(signal.SIGKILL)
        yard.agents[1].send(signal.SIGKILL)
        self.assertTrue(watcher.join(120), "the job did not end")
        self.assertEqual(watcher.end.state, resources_pb.SUCCEEDED, watcher.end)
        self.assertEqual(watcher.missed(), 0)
        for file in ("node.key", "node.pem", "yard.pem"):
            self.assertEqual(os.stat(f"{yard.state_dirs[0]}/{file}").st_mode & 0o077, 0)
        pathlib.Path(yard.join_token).write_text(token)

    def test_who_may_not_join_is_told_why(self):
        yard = self.yard
        for arguments, words in ((["--join-token", yard.join_token], "was used by as many nodes as it is for (2)"),
                                 (["--token-file", yard.dir + "/tokens/agent", "--ca-file", yard.ca],
                                  "this port is for agents that have joined")):
            with Stranger(yard, "stranger", *arguments) as agent:
                agent.says(words)
        with Stranger(yard, "stranger", "--token-file", yard.dir + "/tokens/agent", "--ca-file", yard.ca,
                      server=yard.addresses[0]) as agent:
            agent.says("agents of this yard connect to the server's port for agents")
        # A name that another key has, and a token that was taken back.
        path = yard.dir + "/second-token"
        made = yard.make_token(path, "--joins", "5", "--for", "1h")
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        with Stranger(yard, "node-0", "--join-token", path) as agent:
            agent.says("nodes/node-0 joined with another key")
        token = made.stderr.split(":")[0]
        self.assertIn("lets nobody join any more", yard.admin("admin", "join-token", "revoke", token).stdout)
        with Stranger(yard, "stranger", "--join-token", path) as agent:
            agent.says(f"join token {token} was revoked")
        listed = yard.admin("admin", "join-token", "list").stdout
        self.assertRegex(listed, f"{token} +revoked +- +0 of 5")
        self.assertRegex(listed, "used up +first +2 of 2")
        self.assertNotIn("BEGIN", listed)

    def test_certificate_speaks_for_its_own_node_alone(self):
        yard = self.yard
        copy = yard.dir + "/copy"
        os.mkdir(copy, 0o700)
        for file in ("node.key", "node.pem", "yard.pem"):
            shutil.copy(f"{yard.state_dirs[0]}/{file}", copy)
        # Under another name, and under its own without the secret of its state directory.
        for name in ("node-1", "node-0"):
            with Stranger(yard, name, state=copy) as agent:
                agent.says("with the certificate of nodes/node-0")

    def test_revoked_node_is_gone_at_once_and_comes_back_with_a_new_key_alone(self):
        yard = self.yard
        path = yard.dir + "/third-token"
        yard.make_token(path)
        with Stranger(yard, "third", "--join-token", path) as agent:
            eventually(lambda: "nodes/third" in yard.connected_nodes(), 30, "the node")
            begun = time.monotonic()
            done = yard.admin("node", "revoke", "third")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, "third, which joined .*, was revoked")
            eventually(lambda: "the key of nodes/third was revoked by user:admin" in agent.log.read_text(), 5, "the end")
            self.assertLess(time.monotonic() - begun, 1)
            self.assertEqual(yard.admin("node", "revoke", "third").returncode, 0, "again")
        eventually(lambda: "nodes/third" not in yard.connected_nodes(), 30, "its lease to be over")
        yard.make_token(path)
        with Stranger(yard, "third", "--join-token", path, state=agent.state) as again:
            again.says("the key of nodes/third was revoked")
            self.assertNotIn("nodes/third", yard.connected_nodes())
        os.remove(agent.state + "/node.key")
        with Stranger(yard, "third", "--join-token", path, state=agent.state):
            eventually(lambda: "nodes/third" in yard.connected_nodes(), 30, "the node with its new key")
        never = yard.admin("node", "revoke", "nobody")
        self.assertNotEqual(never.returncode, 0)
        self.assertIn("nodes/nobody has no key to revoke", never.stderr)

    def test_token_of_a_viewer_reads_its_project_until_it_is_revoked(self):
        yard = self.yard
        path = yard.dir + "/viewer"
        made = yard.admin("admin", "token", "create", "user:vera", "--role", "viewer", "--in", "default", "--to", path)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        as_vera = ("--server", ",".join(yard.addresses), "--ca-file", yard.ca, "--token-file", path)
        self.assertEqual(yard.run("whoami", *as_vera).stdout, "user:vera, viewer of default\n")
        self.assertEqual(yard.run("ps", *as_vera).returncode, 0)
        told = yard.run("ps", *as_vera, "--project", "other")
        self.assertEqual(told.returncode, 3)
        self.assertIn("projects/other: no such project", told.stderr)
        told = yard.run("cancel", *as_vera, "nothing")
        self.assertEqual(told.returncode, 4)
        self.assertIn("user:vera (role viewer) may not write jobs", told.stderr)
        token = made.stderr.split(":")[0]
        self.assertRegex(yard.admin("admin", "token", "list").stdout, f"{token} +valid +user:vera +viewer +default")
        self.assertEqual(yard.admin("admin", "token", "revoke", token).returncode, 0)
        begun = time.monotonic()
        told = eventually(lambda: [done for done in [yard.run("ps", *as_vera, "--patience", "0")] if done.returncode], 5)
        self.assertLess(time.monotonic() - begun, 1)
        self.assertEqual(told[0].returncode, 4, told[0].stderr)
        both = yard.admin("admin", "token", "create", "user:vera", "--role", "viewer")
        self.assertEqual(both.returncode, 2)
        self.assertIn("--in PROJECT, or --everywhere", both.stderr)

    def test_broken_token_files_are_refused_before_anything_is_asked(self):
        yard = self.yard
        path = pathlib.Path(yard.dir, "broken-token")
        for text, words in (("", "holds no join token"), ("-----BEGIN TRAINYARD JOIN TOKEN-----\nabc\n"
                                                          "-----END TRAINYARD JOIN TOKEN-----\n", "64 hex digits, found 3"),
                            (pathlib.Path(yard.ca).read_text(), "holds no join token")):
            path.write_text(text)
            with Stranger(yard, "stranger", "--join-token", str(path)) as agent:
                self.assertEqual(agent.process.wait(30), 64)
                self.assertIn(words, agent.log.read_text())


class AuditTest(unittest.TestCase):
    def test_what_was_done_is_told_and_tampering_is_found(self):
        yard = self.enterContext(JoinedReplicas(servers=1, agents=1))
        refused = yard.dir + "/refused"
        pathlib.Path(refused).write_text("0123456789abcdef0123456789abcdef\n")
        os.chmod(refused, 0o600)
        for _ in range(20):
            yard.run("ps", "--server", yard.addresses[0], "--ca-file", yard.ca, "--token-file", refused)
        name = yard.submit(gpt(text_file(yard.dir), 60)).name
        yard.wait_for(name, resources_pb.SUCCEEDED)
        self.assertEqual(yard.admin("node", "revoke", "node-0").returncode, 0)

        def listed():
            text = yard.admin("audit", "list").stdout
            return text if "RevokeNode" in text else None
        told = eventually(listed, 30)
        self.assertRegex(told, r"user:admin +127.0.0.1 +RevokeNode +nodes/node-0 +OK")
        self.assertRegex(told, rf"user:admin +127.0.0.1 +SubmitJob +{name} +OK")
        self.assertRegex(told, r"node:node-0 +127.0.0.1 +Join +nodes/node-0 +OK +joined")
        self.assertRegex(told, r"- +127.0.0.1 +ListJobs +projects/default +UNAUTHENTICATED")
        self.assertLess(told.count("UNAUTHENTICATED"), 4)
        before = yard.servers[0].pid
        yard.servers[0].send(signal.SIGTERM)  # which writes the head; it is started again
        eventually(lambda: yard.servers[0].pid not in (None, before), 60, "the next server")
        eventually(lambda: "as it was written" in yard.admin("audit", "verify", "--heads", yard.dir + "/heads-0").stdout, 60)
        tamper = "ALTER TABLE audit DISABLE TRIGGER audit_is_kept; "
        yard.store.query(tamper + "UPDATE audit SET principal = 'user:eve' WHERE method = 'RevokeNode'")
        found = yard.admin("audit", "verify")
        self.assertNotEqual(found.returncode, 0)
        self.assertRegex(found.stdout, r"chain server-.*, entry \d+ .*was changed")
        yard.store.query("UPDATE audit SET principal = 'user:admin' WHERE method = 'RevokeNode'")
        self.assertEqual(yard.admin("audit", "verify").returncode, 0)
        yard.store.query("DELETE FROM audit a WHERE method = 'RevokeNode' OR (chain, sequence) > "
                         "(SELECT chain, sequence FROM audit WHERE method = 'RevokeNode') AND chain = "
                         "(SELECT chain FROM audit WHERE method = 'RevokeNode')")
        self.assertEqual(yard.admin("audit", "verify").returncode, 0, "its end alone is gone")
        found = yard.admin("audit", "verify", "--heads", yard.dir + "/heads-0")
        self.assertNotEqual(found.returncode, 0)
        self.assertIn("its end was cut off", found.stdout)


class ChangeOverTest(unittest.TestCase):
    def test_agents_with_tokens_join_while_their_job_trains(self):
        yard = self.enterContext(SecuredReplicas(servers=2, agents=2))
        spec = gpt(text_file(yard.dir), 3000, every_steps=1000)
        spec["parallel"], spec["resources"] = {"logical_ranks": 2}, {"min_slots": 2}
        name = yard.submit(spec).name
        watcher = MovingWatcher(yard, name)
        yard.wait_for_step(name, 20)
        yard.parts = []  # what ends is not started again but by this test
        port, token = free_port(), yard.dir + "/join-token"
        yard.servers[1].stop(signal.SIGTERM)
        yard.servers[1]._command += ["--listen-agents", f"127.0.0.1:{port}"]
        yard.servers[1].start()
        made = eventually(lambda: yard.run("--server", yard.addresses[1], "--ca-file", yard.ca, "--token-file",
                                           yard.dir + "/tokens/admin", "admin", "join-token", "--joins", "2", "--to",
                                           token).returncode == 0, 30, "a join token")
        self.assertTrue(made)
        workers = sorted(yard.training_pids())
        for agent in yard.agents:
            agent.stop(signal.SIGTERM)
            command = agent._command
            at = command.index("--token-file")
            agent._command = command[:1] + ["--server", f"127.0.0.1:{port}", "--join-token", token] + command[3:at] + \
                command[at + 4:]
            agent.start()
        eventually(lambda: "joined with join token" in pathlib.Path(yard.dir, "logs/server-1.log").read_text() and
                   len(yard.connected_nodes()) == 2, 30, "the agents to have joined")
        yard.servers[0].stop(signal.SIGTERM)
        self.assertEqual(sorted(yard.training_pids()), workers)
        self.assertTrue(watcher.join(120), "the job did not end")
        self.assertEqual(watcher.end.state, resources_pb.SUCCEEDED, watcher.end)
        self.assertEqual((watcher.end.attempt, watcher.end.restarts, watcher.missed()), (1, 0, 0))


if __name__ == "__main__":
    unittest.main()
