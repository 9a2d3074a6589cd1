#!/usr/bin/python3
"""The cluster of deploy/README.md, its commands run as they stand there, on three machines that are namespaces of this
one: a network, a process tree's view of /etc, /usr, /var/lib and /run for each, and a folder that all see. What takes a
package manager or systemd is done as these would: packages are unpacked and their scripts run, and of a unit what its
ExecStart says is started."""
import glob
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from store import BINARIES  # noqa: E402
from yard import BIN, REPOSITORY, eventually  # noqa: E402

CANNOT_RUN = 77  # ctest's SKIP_RETURN_CODE
NET = "10.77.0."


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **more)
    if done.returncode != 0:
        raise AssertionError(f"{shlex.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def tried(machine, *command):
    """What it prints; "" if it fails."""
    try:
        return machine(*command)
    except AssertionError:
        return ""


class Machine:
    def __init__(self, cluster, name, number):
        self.name, self.cluster, self.services = name, cluster, {}
        self.folder = pathlib.Path(cluster.folder, name)
        for part in ("etc", "lib", "run", "root", "usr", "work"):
            (self.folder / part).mkdir(parents=True)
        shutil.copytree("/etc", self.folder / "etc", symlinks=True, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        (self.folder / "etc/hostname").write_text(name + "\n")
        hosts = ["127.0.0.1 localhost"] + [f"{NET}{i} {host}" for i, host in enumerate(cluster.names, 1)]
        (self.folder / "etc/hosts").write_text("\n".join(hosts) + "\n")
        shared = pathlib.Path(cluster.folder, "shared")
        shared.mkdir(exist_ok=True)
        f = self.folder
        mounts = [f"mount --bind {f}/etc /etc", f"mount --bind {f}/lib /var/lib", f"mount --bind {f}/run /run",
                  f"mount --bind {f}/root /root", f"mkdir -p /srv/trainyard && mount --bind {shared} /srv/trainyard",
                  f"mount -t overlay overlay -o lowerdir=/usr,upperdir={f}/usr,workdir={f}/work /usr",
                  f"hostname {name}", "ip link set lo up", "echo ready", "exec sleep infinity"]
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-ec", "\n".join(mounts)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = self.holder.stdout.readline()
        if said != "ready\n":
            raise AssertionError(said + self.holder.stdout.read())
        # A link into the network that they share.
        link = f"ty{os.getpid() % 100000}{number}"
        run("ip", "link", "add", link, "netns", cluster.switch.pid, "type", "veth", "peer", "name", "eth0", "netns", self.holder.pid)
        cluster.on_switch("ip", "link", "set", link, "master", "br0", "up")
        self("ip", "addr", "add", f"{NET}{number}/24", "dev", "eth0")
        self("ip", "link", "set", "eth0", "up")

    def enter(self, *command):
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-m", "-u", "--", *map(str, command)]

    @property
    def environment(self):
        return {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/games", "LANG": "C.UTF-8", "NO_COLOR": "1"}

    def __call__(self, *command):
        return run(*self.enter(*command), env=self.environment, cwd="/")

    def follow(self, block):
        """Runs the commands of a block of the guide."""
        said = ""
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            line = line.strip().replace("n1", self.name) if self.name != "yard" else line.strip()
            if line.startswith("apt install"):
                for package in re.findall(r"\./(\S+)_\*\.deb", line):
                    self.install(package)
                if "postgresql" in line:
                    self.start_postgres()
            elif line.startswith("systemctl enable --now "):
                self.start(line.split()[-1])
            else:
                said += self("sh", "-ec", line)
        return said

    def install(self, package):
        # Of a build with CUDA the worker's package has another name.
        found = [path for path in self.cluster.packages if re.fullmatch(rf"{package}(-cuda)?_.*\.deb", path.name)]
        control = self.folder / f"control-{package}"
        shutil.rmtree(control, ignore_errors=True)
        run("dpkg-deb", "-e", found[0], control)
        listed = control / "conffiles"
        kept = [path for path in (listed.read_text().split() if listed.exists() else []) if (self.folder / path[1:]).exists()]
        without = " ".join(f"--exclude .{path}" for path in kept)  # what an operator has changed stays
        self("sh", "-ec", f"dpkg-deb --fsys-tarfile {found[0]} | tar -x -C / {without}")
        if (control / "postinst").exists():
            self("sh", control / "postinst", "configure")

    def start_postgres(self):
        """As Debian's package does: a cluster whose users prove who they are by their socket."""
        self("install", "-d", "-o", "postgres", "/run/postgresql", "/var/lib/postgresql")
        binaries, data = BINARIES[-1], "/var/lib/postgresql/data"
        as_postgres = ("runuser", "-u", "postgres", "--")
        self(*as_postgres, binaries / "initdb", "-D", data, "-A", "peer", "-E", "UTF8", "--locale=C", "-N")
        self(*as_postgres, binaries / "pg_ctl", "-D", data, "-l", "/var/lib/postgresql/log", "-w", "-o",
             "-c listen_addresses='' -c unix_socket_directories=/run/postgresql -c fsync=off", "start")

    def start(self, service):
        unit = pathlib.Path(self.folder, f"usr/lib/systemd/system/{service}.service").read_text()
        settings = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"[A-Z]\w+=", line))
        state = "/var/lib/" + settings["StateDirectory"]
        user = settings.get("User", "root")
        self("install", "-d", "-m", settings["StateDirectoryMode"], "-o", user, state)
        command = shlex.split(settings["ExecStart"])
        if user != "root":
            command = ["runuser", "-u", user, "--", *command]
        log = open(self.folder / f"{service}.log", "wb")
        self.services[service] = subprocess.Popen(self.enter(*command), env=self.environment, cwd="/", stdin=subprocess.DEVNULL,
                                                  stdout=log, stderr=log)

    def ask(self, service, number):
        """nsenter and runuser stand between: the program itself is sent the signal, that of this machine's network."""
        subprocess.run(["pkill", f"-{number}", "--ns", str(self.holder.pid), "--nslist", "net", "-f", f"^/usr/bin/{service} "],
                       check=False)

    def upgrade(self, package):
        """The same version once more: unpacked over the old one, and its program begun anew, as systemd would (KillMode=process)."""
        self.install(package)
        self.ask(package, "TERM")
        self.services[package].wait(60)
        self.start(package)

    def end(self):
        for service in self.services:
            self.ask(service, "INT" if "agent" in service else "TERM")
        for process in self.services.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        if (self.folder / "lib/postgresql").exists():
            subprocess.run(self.enter("runuser", "-u", "postgres", "--", BINARIES[-1] / "pg_ctl", "-D", "/var/lib/postgresql/data",
                                      "-m", "immediate", "stop"), stdout=subprocess.DEVNULL, check=False)
        self.holder.kill()
        self.holder.wait()

    def logs(self):
        return "\n".join(f"--- {self.name}: {log.name}\n{log.read_text(errors='replace')[-3000:]}"
                         for log in sorted(self.folder.glob("*.log")))


class Cluster:
    names = ("yard", "n1", "n2")

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="trainyard-cluster-")
        self.folder = os.path.realpath(self._temporary.name)
        os.chmod(self.folder, 0o755)
        build = BIN.parent
        run("cpack", "-G", "DEB", "-B", self.folder + "/packages", cwd=build)
        self.packages = sorted(pathlib.Path(self.folder, "packages").glob("*.deb"))
        self.switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        eventually(lambda: os.readlink(f"/proc/{self.switch.pid}/ns/net") != os.readlink("/proc/self/ns/net"), 10)
        self.on_switch("ip", "link", "add", "br0", "type", "bridge")
        self.on_switch("ip", "link", "set", "br0", "up")
        self.machines = []
        try:
            for number, name in enumerate(self.names, 1):
                self.machines.append(Machine(self, name, number))
        except BaseException:
            self.__exit__(Exception, None, None)
            raise
        return self

    def on_switch(self, *command):
        return run("nsenter", "-t", self.switch.pid, "-n", "--", *command)

    def __exit__(self, kind, *_):
        if kind is not None:
            print("\n".join(machine.logs() for machine in self.machines))
        for machine in reversed(self.machines):
            machine.end()
        self.switch.kill()
        self.switch.wait()
        self._temporary.cleanup()


class ClusterTest(unittest.TestCase):
    def test_the_guide_ends_with_a_gang_on_two_nodes_with_tls_on_every_link(self):
        text = (REPOSITORY / "deploy/README.md").read_text()
        section = re.search(r"^## A cluster of three machines.*?(?=^## )", text, re.M | re.S)[0]
        of_yard, of_node, job, spec = re.findall(r"(?:^    .*\n)+", section, re.M)
        with Cluster() as cluster:
            yard, *nodes = cluster.machines
            yard.follow(of_yard.split("    runuser -u trainyard")[0])
            eventually(lambda: "BEGIN" in tried(yard, "runuser", "-u", "trainyard", "--", "trainyard-server", "authority",
                                                "--database", "host=/run/postgresql dbname=trainyard"), 60, "the server")
            yard.follow("    runuser -u trainyard" + of_yard.split("    runuser -u trainyard")[1])
            for node in nodes:
                node.follow(of_node.splitlines(keepends=True)[0])
                shutil.copy(yard.folder / "root/join.token", node.folder / "etc/trainyard/join.token")
                node.follow("".join(of_node.splitlines(keepends=True)[1:]))
            eventually(lambda: tried(yard, "trainyard", "node", "list").count("READY") == 2, 60, "both nodes")
            self.assertNotRegex(yard("trainyard", "admin", "doctor"), "BAD|warning")
            (yard.folder / "root/gang.yaml").write_text(spec)
            said = yard.follow(job)
            self.assertIn("SUCCEEDED", said)
            self.on_both(nodes)
            self.links_are_encrypted(cluster)
            self.upgrades_cost_a_job_nothing(yard, nodes)

    def upgrades_cost_a_job_nothing(self, yard, nodes):
        yard("trainyard", "submit", "/root/gang.yaml", "--name", "long", "--set", "spec.training.steps=1500")
        job = lambda: json.loads(yard("trainyard", "get", "long", "-o", "json"))  # noqa: E731
        eventually(lambda: int(job().get("step", 0)) >= 10, 60, "steps")
        for machine, package in ((nodes[0], "trainyard-agent"), (yard, "trainyard-server"), (nodes[1], "trainyard-agent")):
            machine.upgrade(package)
            eventually(lambda: tried(yard, "trainyard", "node", "list").count("READY") == 2, 60, "the yard")
        self.assertEqual(job()["state"], "RUNNING", "long enough for all three")
        yard("trainyard", "wait", "long")
        self.assertEqual((int(job()["attempt"]), job().get("restarts", 0)), (1, 0))

    def on_both(self, nodes):
        """Each node ran a rank, as the project's user."""
        for node in nodes:
            ranks = glob.glob(str(node.folder / "lib/trainyard-agent/ranks/*/events.log"))
            self.assertTrue(ranks, node.name)
            self.assertEqual({os.stat(rank).st_uid for rank in ranks}, {2001})

    def links_are_encrypted(self, cluster):
        """What listens beyond its machine speaks TLS 1.3 and nothing older."""
        for port in (7070, 7071):
            for version, works in (("-tls1_3", True), ("-tls1_2", False)):
                done = subprocess.run(cluster.machines[1].enter("openssl", "s_client", "-connect", f"yard:{port}", version, "-alpn", "h2"),
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      errors="replace", timeout=20)
                self.assertEqual("BEGIN CERTIFICATE" in done.stdout, works, f"{port} {version}: {done.stdout[-800:]}")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: only root may make machines of namespaces")
        sys.exit(CANNOT_RUN)
    unittest.main()
