"""Yards whose links are TLS, by an authority of their own: agents with tokens, or agents that have joined."""
import pathlib

from links import free_port
from replicas import Replicas
from yard import BIN, eventually


class SecuredReplicas(Replicas):
    def __init__(self, servers=2, agents=2):
        super().__init__(servers=servers, agents=agents)

    @property
    def key(self):
        return self.dir + "/authority.key"

    @property
    def ca(self):
        return self.dir + "/ca.pem"

    def _server(self, i, port):
        part = super()._server(i, port)
        part._command += ["--authority-key", self.key]
        return part

    def _credentials_of_agents(self):
        return super()._credentials_of_agents() + ["--ca-file", self.ca]

    def _meet(self):
        asked = eventually(lambda: self.program("trainyard-server", "authority", "--database", self.database(0)),
                           60, "the first server to make an authority")
        self.authority = asked.encode()
        pathlib.Path(self.ca).write_text(asked)

    def program(self, name, *arguments):
        """What it prints; "" if it fails."""
        done = self.run(*arguments, program=BIN / name)
        return done.stdout if done.returncode == 0 else ""


class JoinedReplicas(SecuredReplicas):
    """Each server has a port for agents alone, which have joined with one token for all."""

    @property
    def join_token(self):
        return self.dir + "/join-token"

    def _ports_for_agents(self, ports):
        self.agents_ports = [free_port() for _ in ports]
        return self.agents_ports

    def _server(self, i, port):
        part = super()._server(i, port)
        part._command += ["--listen-agents", f"127.0.0.1:{self.agents_ports[i]}", "--audit-heads", f"{self.dir}/heads-{i}"]
        return part

    def _credentials_of_agents(self):
        return ["--join-token", self.join_token]

    def admin(self, *arguments):
        """`trainyard`, as the admin, of the first server that answers."""
        return self.run("--server", ",".join(self.addresses), "--ca-file", self.ca, "--token-file",
                        self.dir + "/tokens/admin", *arguments)

    def make_token(self, path, *arguments):
        done = self.admin("admin", "join-token", "--to", path, *arguments)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done

    def _meet(self):
        super()._meet()
        self.make_token(self.join_token, "--joins", str(self._counts[1]), "--pool", "first")
