"""A yard whose agents are nodes of their own: each in a network namespace, with an address by which it reaches the
server and one by which its ranks reach those of other nodes, and with a small disk of its own."""
import os
import pathlib
import subprocess
import sys

CONTROL, DATA = "10.77.0", "10.78.0"  # networks: agents and server; ranks. .1 is this process's own address.
FIRST_PORT = 25000  # of the ranks of a node
DISK = 400 << 20  # bytes of a node's state directory; with less it takes no work


def enter_own_machine():
    """Starts this program again where it may make networks and disks that nobody else sees, if that is permitted; what
    is missing is "" in TRAINYARD_OWN_MACHINE."""
    if "TRAINYARD_OWN_MACHINE" in os.environ:
        return
    attempt = ("mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link set lo up && "
               "ip link add name bridge0 type bridge && ip netns add trial && ip link add name near0 type veth peer name far0 netns trial && "
               "ip link set near0 master bridge0 && nsenter --net=/run/netns/trial true")
    permitted = os.geteuid() == 0 and subprocess.run(
        ["unshare", "-m", "-n", "sh", "-c", attempt], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    os.environ["TRAINYARD_OWN_MACHINE"] = "1" if permitted else ""
    if permitted:
        sys.stdout.flush()
        os.execvp("unshare", ["unshare", "-m", "-n", sys.executable, *sys.argv])


def has_own_machine():
    return bool(os.environ.get("TRAINYARD_OWN_MACHINE"))


def call(*words):
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)


class Network:
    """A bridge, and for each node a cable to it that can be pulled out."""

    def __init__(self, letter, network):
        self._letter, self._bridge = letter, f"{letter}-all"
        call("ip", "link", "add", "name", self._bridge, "type", "bridge")
        call("ip", "address", "add", f"{network}.1/24", "dev", self._bridge)
        call("ip", "link", "set", self._bridge, "up")
        self._network = network

    def add(self, node):
        here, there = f"{self._letter}{node}", f"{self._letter}-own"
        call("ip", "link", "add", "name", here, "type", "veth", "peer", "name", there, "netns", f"node{node}")
        call("ip", "link", "set", here, "master", self._bridge, "up")
        call("ip", "-n", f"node{node}", "address", "add", f"{self._network}.{node + 2}/24", "dev", there)
        call("ip", "-n", f"node{node}", "link", "set", there, "up")

    def set(self, node, state):
        """up or down"""
        call("ip", "link", "set", f"{self._letter}{node}", state)


def make_yard(nodes, slots):
    """A GangYard, whose base class is known only once the programs are built."""
    from links import free_port
    from replicas import Part, Replicas
    from store import Postgres
    from yard import BIN, Api, eventually

    class GangYard(Replicas):
        def _make(self):
            self._make_folders()
            if has_own_machine():
                call("mount", "-t", "tmpfs", "none", "/run/netns")
                call("ip", "link", "set", "lo", "up")
                self.networks = {"control": Network("c", CONTROL), "data": Network("d", DATA)}
            self.store = Postgres(self.dir + "/store", free_port()).make()
            self.store.start()
            self.stores = [self.store]
            self.port = free_port()
            self.address = f"127.0.0.1:{self.port}"
            self.state_dirs = [f"{self.dir}/agents/{node}" for node in range(nodes)]
            self.servers = [self._server()]
            self.agents = [self._agent(node) for node in range(nodes)]
            self.parts = self.servers + self.agents
            self.api = Api(self.address, self.token)
            self.api.patient = True
            for part in self.parts:
                part.start()
            self._keeper.start()
            eventually(lambda: len(self.connected_nodes()) == nodes, 60, "all agents to be registered")

        def logs(self):
            """The ends of the logs, without those of ranks that said nothing."""
            parts = super().logs().split("--- ")
            return "--- ".join(part for part in parts if "/ranks/" not in part or len(part.splitlines()) > 1)

        def _server(self):
            host = "0.0.0.0" if has_own_machine() else "127.0.0.1"
            return self._part("server", [
                str(BIN / "trainyard-server"), "--listen", f"{host}:{self.port}", "--insecure", "--database",
                f"host=127.0.0.1 port={self.store.port} user=postgres dbname=postgres",
                "--token-file", f"admin:admin:{self.dir}/tokens/admin",
                "--token-file", f"agent:agent:{self.dir}/tokens/agent", "--checkpoint-root", self.dir + "/checkpoints",
                "--orphan-limit-ms", "10000"])

        def _agent(self, node):
            state = pathlib.Path(self.state_dirs[node])
            state.mkdir(parents=True)
            if has_own_machine():
                call("ip", "netns", "add", f"node{node}")
                call("ip", "-n", f"node{node}", "link", "set", "lo", "up")
                for network in self.networks.values():
                    network.add(node)
                call("mount", "-t", "tmpfs", "-o", f"size={DISK}", "trainyard-test", state)
                self._mounts.append(str(state))
            os.chmod(state, 0o700)
            server = f"{CONTROL}.1" if has_own_machine() else "127.0.0.1"
            return self._part(f"agent-{node}", [
                *self.on(node), str(BIN / "trainyard-agent"), "--server", f"{server}:{self.port}", "--node", f"node-{node}",
                "--token-file", self.dir + "/tokens/agent", "--state-dir", str(state), "--cpu-slots", str(slots),
                "--threads-per-slot", "1", "--standby", str(slots), "--address", self.host(node),
                "--rank-port", str(self.rank_ports(node)[0])])

        @staticmethod
        def on(node):
            """What a command begins with that runs on the node."""
            return ["nsenter", f"--net=/run/netns/node{node}"] if has_own_machine() else []

        @staticmethod
        def host(node):
            """The address by which ranks reach those of the node."""
            return f"{DATA}.{node + 2}" if has_own_machine() else "127.0.0.1"

        @staticmethod
        def rank_ports(node):
            first = FIRST_PORT + slots * node
            return range(first, first + slots)

    return GangYard()


def segments_left(pids):
    """Shared memory that outlives the ranks that used it: named, or held by one of these processes of the yard."""
    found = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "trainyard" in name]
    for pid in pids:
        try:
            for entry in os.scandir(f"/proc/{pid}/fd"):
                target = os.readlink(entry.path)
                # Every worker has a file for its state, and its agent, too: an empty one but for moments of a resize.
                if target.startswith("/memfd:trainyard") and os.stat(entry.path).st_size > 0:
                    found.append(f"{target} of process {pid}")
        except OSError:
            continue
    return found
