"""A yard of several servers and agents on one machine, whose parts and links a test breaks as it likes: PostgreSQL,
perhaps with a stand-by, servers on ports of their own, agents with state directories of their own, and a link
(links.py) between each agent and each server and between each server and PostgreSQL."""
import os
import pathlib
import secrets
import signal
import subprocess
import tempfile
import threading
import time

from links import Links, free_port
from store import Postgres
from yard import BIN, Api, Watcher, Yard, eventually, grpc, kill, resources_pb, run_services_pb

# CANCELLED: gRPC says so itself of a call that reaches a server just as it shuts down, before any code of ours sees it.
MOVES_ON = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class Part:
    """A program of the yard, started again when it ends unless `wanted` is off."""

    def __init__(self, name, command, log, environment):
        self.name, self.wanted, self.process = name, True, None
        self._command, self._log, self._environment = command, log, environment
        self._lock = threading.Lock()

    def start(self):
        with self._lock:
            if self.process is None or self.process.poll() is not None:
                with open(self._log, "ab") as log:
                    self.process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL,
                                                    stdout=log, stderr=log)

    def tend(self):
        if self.process.poll() is not None and self.wanted:
            self.start()

    @property
    def pid(self):
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def send(self, number):
        return kill(self.pid, number) if self.pid else False

    def stop(self, number=signal.SIGTERM, seconds=30):
        """Ends it for good, and waits for that."""
        self.wanted = False
        if self.pid:
            self.send(signal.SIGCONT)
            self.send(number)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


class Apis:
    """Api over several servers: a call goes to another one when its own is away, until it has been answered; a stream
    that breaks makes the next one go to another."""

    def __init__(self, addresses, token, authority=None):
        self._apis = [Api(address, token, authority) for address in addresses]
        self._at = 0
        for service in ("job", "metric", "log", "checkpoint", "node"):
            setattr(self, service, _Service(self, service))

    def unary(self, service, method, request, timeout=120):
        deadline = time.monotonic() + timeout
        while True:
            call = getattr(getattr(self._apis[self._at % len(self._apis)], service), method)
            try:
                return call(request, timeout=6, wait=False)
            except grpc.RpcError as error:
                if error.code() not in MOVES_ON or time.monotonic() > deadline:
                    raise
            self._at += 1
            self._apis[self._at % len(self._apis)].let_connect(0.2)

    def stream(self, service, method, request, timeout):
        call = getattr(getattr(self._apis[self._at % len(self._apis)], service), method)
        try:
            yield from call(request, timeout=timeout, wait=False)
        except grpc.RpcError:
            self._at += 1
            raise

    def close(self):
        for api in self._apis:
            api.close()


class _Service:
    def __init__(self, apis, name):
        self._apis, self._name = apis, name

    def __getattr__(self, method):
        if method in ("WatchJob", "StreamMetrics", "TailLogs"):
            return lambda request, timeout=600: self._apis.stream(self._name, method, request, timeout)
        return lambda request, timeout=120: self._apis.unary(self._name, method, request, timeout)


class MovingWatcher(Watcher):
    """A Watcher that turns to another server when its stream breaks."""

    def _connect(self, yard):
        return Apis(yard.addresses, yard.token, yard.authority)


class Replicas(Yard):
    """`with Replicas(servers=3, agents=4) as yard:` runs one; everything is gone afterwards.

    `stand_by`: seconds by which the clock of a synchronous stand-by is ahead; None: there is none."""

    def __init__(self, servers=3, agents=4, stand_by=None, orphan_limit_ms=600000, small_disks=0):
        super().__init__()
        self._counts, self._stand_by, self._orphan_limit_ms = (servers, agents), stand_by, orphan_limit_ms
        self.small_disks = small_disks

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="trainyard-replicas-")
        os.chmod(self._folder.name, 0o755)
        self.dir = os.path.realpath(self._folder.name) + "/yard"
        self.environment = dict(os.environ, XDG_CONFIG_HOME=self._folder.name + "/config", NO_COLOR="1",
                                TRAINYARD_YARD=self.dir)
        self.links, self.parts, self._mounts, self._ending = Links(), [], [], threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        try:
            self._make()
        except BaseException:
            self.__exit__(Exception, None, None)
            raise
        return self

    def _make_folders(self):
        for folder in ("tokens", "logs", "checkpoints"):
            pathlib.Path(self.dir, folder).mkdir(parents=True)
        for name in ("admin", "agent"):
            pathlib.Path(self.dir, "tokens", name).write_text(secrets.token_hex(32) + "\n")
            os.chmod(f"{self.dir}/tokens/{name}", 0o600)
        self.token = pathlib.Path(self.dir, "tokens/admin").read_text().strip()

    def _make(self):
        servers, agents = self._counts
        self._make_folders()
        self.store = self._store().make()
        self.store.start()
        self.stores = [self.store]
        if self._stand_by is not None:
            self.stores.append(Postgres(self.dir + "/stand-by", free_port(), self._stand_by).make_stand_by_of(self.store))
        # [server][store], [agent][server]
        self.store_links = [[self.links.make(store.port) for store in self.stores] for _ in range(servers)]
        ports = [free_port() for _ in range(servers)]
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        for_agents = self._ports_for_agents(ports)
        self.agent_links = [[self.links.make(port) for port in for_agents] for _ in range(agents)]
        self.servers = [self._server(i, port) for i, port in enumerate(ports)]
        self.state_dirs = [f"{self.dir}/agents/{i}" for i in range(agents)]
        self.agents = [self._agent(i) for i in range(agents)]
        self.parts = self.servers + self.agents
        self.servers[0].start()  # it makes the tables; the others find them
        self._meet()
        self.api = Apis(self.addresses, self.token, self.authority)
        for part in self.parts:
            part.start()
        self._keeper.start()
        eventually(lambda: len(self.connected_nodes()) == agents, 60, "all agents to be registered")

    def _store(self):
        return Postgres(self.dir + "/store", free_port())

    authority = None  # PEM, of a yard whose links are TLS

    def _ports_for_agents(self, ports):
        """Where each server takes agents, if not where it takes everybody."""
        return ports

    def _meet(self):
        """What there is to do once the first server was started."""

    def database(self, server):
        """By which a server reaches its store."""
        hosts = ",".join("127.0.0.1" for _ in self.stores)
        ports = ",".join(str(link.port) for link in self.store_links[server])
        return f"host={hosts} port={ports} user=postgres dbname=postgres target_session_attrs=read-write"

    def _part(self, name, command):
        return Part(name, command, f"{self.dir}/logs/{name}.log", self.environment)

    def _server(self, i, port):
        return self._part(f"server-{i}", [
            str(BIN / "trainyard-server"), "--listen", f"127.0.0.1:{port}", "--database", self.database(i), "--token-file", f"admin:admin:{self.dir}/tokens/admin", "--token-file", f"agent:agent:{self.dir}/tokens/agent",
            "--checkpoint-root", self.dir + "/checkpoints", "--orphan-limit-ms", str(self._orphan_limit_ms)])

    def _agent(self, i):
        state = pathlib.Path(self.state_dirs[i])
        state.mkdir(parents=True)
        if self.small_disks:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.small_disks}", "trainyard-test", str(state)], check=True)
            self._mounts.append(str(state))
        os.chmod(state, 0o700)
        return self._part(f"agent-{i}", [
            str(BIN / "trainyard-agent"), "--server", ",".join(f"127.0.0.1:{link.port}" for link in self.agent_links[i]),
            "--node", f"node-{i}", *self._credentials_of_agents(), "--state-dir", str(state), "--cpu-slots", "1",
            "--threads-per-slot", "1", "--standby", "1"])

    def _credentials_of_agents(self):
        return ["--token-file", self.dir + "/tokens/agent"]

    def _keep(self):
        while not self._ending.wait(0.1):
            for part in self.parts:
                part.tend()

    def __exit__(self, kind, *_):
        self._ending.set()
        if self._keeper.is_alive():
            self._keeper.join()
        if kind is not None:
            print(self.logs())
        if hasattr(self, "api"):
            self.api.close()
        agents, servers = getattr(self, "agents", []), getattr(self, "servers", [])
        for part in agents:
            part.stop(signal.SIGINT)
        for part in servers:
            part.stop(signal.SIGTERM, 10)
        for store in reversed(getattr(self, "stores", [])):
            if store.pids():
                store.thaw()
                store.stop()
        self.links.close()
        for mount in self._mounts:
            subprocess.run(["umount", "-l", mount], check=False)
        self._folder.cleanup()

    # --- who is where --------------------------------------------------------------------------------

    def leader(self):
        """(index of the server that leads or None, epoch), as the store says."""
        store = next(store for store in self.stores if store.pids())
        holder, epoch = store.query("SELECT holder, epoch FROM leader").split("|")
        at = [i for i, address in enumerate(self.addresses) if f" {address}/" in holder]
        return (at[0] if at else None), int(epoch)

    def connected_nodes(self):
        nodes = self.api.node.ListNodes(run_services_pb.ListNodesRequest()).nodes
        return [node.name for node in nodes if node.state == resources_pb.Node.READY]

    def server_of(self, agent):
        """The index of the server that the agent's session is with, by who is connected to whom."""
        pid = self.agents[agent].pid
        if pid is None:
            return None
        lines = []
        for table in ("tcp", "tcp6"):  # gRPC's sockets speak both
            with open(f"/proc/{pid}/net/{table}") as f:
                lines += [line.split() for line in f][1:]
        inodes = set()
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(entry.path)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        ports = {int(line[2].split(":")[1], 16) for line in lines if line[3] == "01" and line[9] in inodes}
        for i, link in enumerate(self.agent_links[agent]):
            if link.port in ports:
                return i
        return None

    def workers(self):
        """Live processes that hold a rank: [(agent, name of the rank, pid)], JOB.ATTEMPT.RANK the name."""
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                cwd = os.readlink(f"/proc/{entry.name}/cwd")
                if not cwd.startswith(self.dir + "/agents/"):
                    continue
                agent, _, rank = cwd.removeprefix(self.dir + "/agents/").partition("/ranks/")
                with open(f"/proc/{entry.name}/stat") as f:
                    state = f.read().rpartition(") ")[2][0]
            except OSError:
                continue
            if rank and state not in "ZX":
                found.append((int(agent), rank.partition("/")[0].removesuffix(" (deleted)"), int(entry.name)))
        return found

    def training_pids(self, state_dir=None):
        return [pid for _, _, pid in self.workers()]

    def pid(self, part):
        return next((one.pid for one in self.parts if one.name == part), None)
