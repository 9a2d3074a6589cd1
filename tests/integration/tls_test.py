#!/usr/bin/python3
"""Two servers, two agents and a command line that reach one another by TLS, with a yard that is its own authority."""
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from replicas import MovingWatcher  # noqa: E402
from secured import SecuredReplicas  # noqa: E402
from yard import BIN, eventually, gpt, resources_pb, text_file  # noqa: E402


def handshake(address, newest):
    """The version of TLS that the server agrees to with one that trusts anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, newest
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as plain, context.wrap_socket(plain) as secured:
        return secured.version()


class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.yard = SecuredReplicas().__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.yard.__exit__(None, None, None)
        assert not cls.yard.processes(), cls.yard.processes()

    def cli(self, *arguments, **more):
        return self.yard.run(*arguments, **more)

    def test_gang_trains_over_two_nodes_and_outlives_a_server(self):
        yard = self.yard
        added = self.cli("context", "add", "team", *yard.addresses, "--token-from", yard.dir + "/tokens/admin", "--ca-from",
                         yard.ca)
        self.assertEqual(added.returncode, 0, added.stderr)
        self.assertRegex(self.cli("context", "show").stdout, "link: +TLS, by Trainyard ")
        spec = gpt(text_file(yard.dir), 300, every_steps=50)
        spec["parallel"], spec["resources"] = {"logical_ranks": 2}, {"min_slots": 2}
        name = yard.submit(spec).name
        watcher = MovingWatcher(yard, name)
        eventually(lambda: yard.training_pids(), 60, "ranks to run")
        agent = 0
        server = eventually(lambda: yard.server_of(agent) is not None and (yard.server_of(agent),), 30, "a session")[0]
        yard.servers[server].send(signal.SIGKILL)
        self.assertTrue(watcher.join(120), "the job did not end")
        self.assertEqual(watcher.end.state, resources_pb.SUCCEEDED, watcher.end)
        self.assertEqual(watcher.missed(), 0)
        got = self.cli("get", name.rpartition("/")[2])
        self.assertEqual(got.returncode, 0, got.stderr)

    def test_command_that_came_while_the_server_was_away_finds_it_by_tls(self):
        yard, server = self.yard, self.yard.servers[0]
        server.stop(signal.SIGKILL)
        try:
            command = subprocess.Popen(
                [str(BIN / "trainyard"), "ps", "--server", yard.addresses[0], "--ca-file", yard.ca, "--token-file",
                 yard.dir + "/tokens/admin", "--patience", "20"], env=yard.environment, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            host, _, port = yard.addresses[0].rpartition(":")
            # Once its first connection was refused: it makes another one that is.
            with socket.create_server((host, int(port)), reuse_port=True) as nobody:
                nobody.settimeout(20)
                nobody.accept()[0].close()
        finally:
            server.wanted = True
            server.start()
        _, told = command.communicate(timeout=60)
        self.assertEqual(command.returncode, 0, told)

    def test_older_tls_and_clear_text_are_refused(self):
        address = self.yard.addresses[0]
        self.assertEqual(handshake(address, ssl.TLSVersion.TLSv1_3), "TLSv1.3")
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            handshake(address, ssl.TLSVersion.TLSv1_2)
        # Under this name no context knows it.
        stranger = address.replace("127.0.0.1", "localhost")
        told = self.cli("ps", "--server", stranger, "--patience", "0", "--token-file", self.yard.dir + "/tokens/admin")
        self.assertNotEqual(told.returncode, 0)
        self.assertIn("hangs up on clear text", told.stderr)

    def test_context_of_before_is_shown_and_does_not_send_its_token_in_clear(self):
        home = pathlib.Path(self.yard.dir, "before/trainyard")
        home.mkdir(parents=True)
        (home / "contexts.yaml").write_text("current: old\ncontexts:\n  old: {server: \"yard.invalid:7070\", token: t}\n")
        os.chmod(home / "contexts.yaml", 0o600)
        environment = dict(self.yard.environment, XDG_CONFIG_HOME=str(home.parent))
        shown = subprocess.run([str(BIN / "trainyard"), "context", "show"], env=environment, text=True, capture_output=True)
        self.assertRegex(shown.stdout, "link: +clear text")
        asked = subprocess.run([str(BIN / "trainyard"), "ps"], env=environment, text=True, capture_output=True)
        self.assertNotEqual(asked.returncode, 0)
        self.assertIn("the token would travel in clear text to yard.invalid:7070", asked.stderr)

    def test_another_authority_is_not_believed_and_the_user_is_told(self):
        other = self.yard.dir + "/other.pem"
        pathlib.Path(other).write_text(ssl.DER_cert_to_PEM_cert(make_other_authority(self.yard.dir)))
        told = self.cli("ps", "--server", self.yard.addresses[0], "--ca-file", other, "--patience", "0")
        self.assertNotEqual(told.returncode, 0)
        self.assertIn("no trusted authority signed", told.stderr)

    def test_agent_that_trusts_another_authority_says_so(self):
        other = self.yard.dir + "/agents-other.pem"
        pathlib.Path(other).write_text(ssl.DER_cert_to_PEM_cert(make_other_authority(self.yard.dir)))
        log = pathlib.Path(self.yard.dir, "lost.log")
        with open(log, "wb") as out:
            agent = subprocess.Popen([str(BIN / "trainyard-agent"), "--server", self.yard.addresses[0], "--node", "lost",
                                      "--token-file", self.yard.dir + "/tokens/agent", "--state-dir", self.yard.dir + "/lost",
                                      "--cpu-slots", "1", "--ca-file", other], env=self.yard.environment,
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            eventually(lambda: "certificate verify failed" in log.read_text(), 30, "the agent to say what is wrong")
        finally:
            agent.send_signal(signal.SIGINT)
            agent.wait(30)

    def test_server_without_the_key_does_not_start(self):
        yard = self.yard
        for content, words in ((None, "copy it from another server"), ("0" * 64, "does not open the yard's authority"),
                               ("not a key", "expected the key of the yard's authority")):
            path = yard.dir + "/other.key"
            if content is not None:
                pathlib.Path(path).write_text(content + "\n")
                os.chmod(path, 0o600)
            done = self.cli("--listen", "127.0.0.1:0", "--database", yard.database(0), "--checkpoint-root", yard.dir,
                            "--authority-key", path, program=BIN / "trainyard-server")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stdout + done.stderr)


def make_other_authority(folder):
    """The certificate, as DER, of an authority that nobody knows."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                    folder + "/other-ca.key", "-out", folder + "/other-ca.der", "-outform", "DER", "-subj", "/CN=other",
                    "-days", "2"], check=True, stderr=subprocess.DEVNULL)
    return pathlib.Path(folder, "other-ca.der").read_bytes()


if __name__ == "__main__":
    unittest.main()
