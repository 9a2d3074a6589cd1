"""A Slurm of a test's own: munged, slurmctld and some slurmd on this machine, all as root, on sockets and ports of their
own. Its configuration is that of a small cluster; what makes it quick says so."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

from links import free_port
from yard import eventually

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")


def missing():
    """Why there can be no Slurm here; None: there can."""
    if os.geteuid() != 0:
        return "only root may start a Slurm"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    lacking = [name for name in NEEDED if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else None


class Slurm:
    """`with Slurm(folder, nodes=3) as slurm:`"""

    def __init__(self, folder, nodes, cpus=1):
        self.folder, self.cpus = pathlib.Path(folder), cpus
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)]
        self.daemons = {}

    def __enter__(self):
        self.folder.mkdir(parents=True)
        os.chmod(self.folder, 0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        os.chmod(key, 0o400)
        munge = self.folder / "munge"
        munge.mkdir()
        self._port, self._ports = free_port(), [free_port() for _ in self.nodes]
        self._write_configuration(munge / "socket")
        self.environment = dict(os.environ, SLURM_CONF=str(self.conf),
                                PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")
        try:
            self._start("munged", "munged", "--foreground", "--force", "--key-file", key, "--socket", munge / "socket",
                        "--pid-file", munge / "pid", "--log-file", munge / "log", "--seed-file", munge / "seed")
            self._wait(lambda: (munge / "socket").exists(), "munged")
            self.start_controller("-c")
            for node in self.nodes:
                self.start_node(node)
            self._wait(lambda: self.call("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(self.nodes), "idle nodes")
        except BaseException:
            self.__exit__(Exception, None, None)
            raise
        return self

    def _write_configuration(self, munge):
        spool, host = self.folder / "spool", socket.gethostname()
        (self.folder / "state").mkdir()
        lines = [
            "ClusterName=test", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={self._port}", "SlurmUser=root",
            "SlurmdUser=root", f"AuthInfo=socket={munge}", f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={spool}/%n", f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU", "SlurmdParameters=config_overrides",
            "ReturnToService=2", "SwitchType=switch/none", "MpiDefault=none", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "MinJobAge=60", "SlurmdTimeout=20", "KillWait=10",
            # By default a batch of submissions is looked at every few seconds.
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1,sched_interval=1,default_queue_depth=1000",
            f"SlurmctldLogFile={self.folder}/slurmctld.log", f"SlurmdLogFile={self.folder}/slurmd-%n.log"]
        for node, port in zip(self.nodes, self._ports):
            (spool / node).mkdir(parents=True)
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} State=UNKNOWN")
        lines.append(f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP")
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text("\n".join(lines) + "\n")

    def _start(self, name, *command):
        with open(self.folder / f"{name}.out", "ab") as log:
            self.daemons[name] = subprocess.Popen([str(part) for part in command], env=self.environment,
                                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wait(self, condition, what, seconds=60):
        def holds():
            try:
                return condition()
            except (AssertionError, OSError):
                return False  # the controller does not answer yet
        eventually(holds, seconds, what)

    def start_controller(self, *flags):
        """`-c`: forgets all jobs of an earlier one."""
        self._start("slurmctld", "slurmctld", "-D", "-f", self.conf, *flags)
        self._wait(lambda: self.call("squeue", "-h") is not None, "slurmctld to answer")

    def start_node(self, node):
        self._start(node, "slurmd", "-D", "-f", self.conf, "-N", node)

    def kill(self, daemon, number=signal.SIGKILL):
        process = self.daemons.pop(daemon)
        process.send_signal(number)
        process.wait(30)

    def call(self, *command):
        done = subprocess.run([str(part) for part in command], env=self.environment, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}: {done.stdout}")
        return done.stdout

    def live(self):
        """Jobs that wait or run, by id: {"12_1": "RUNNING"}."""
        lines = self.call("squeue", "-h", "-r", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def __exit__(self, kind, *_):
        if kind is not None:
            for log in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")):
                lines = log.read_text(errors="replace").splitlines()[-15:]
                print(f"--- {log.name}", *lines, sep="\n", file=sys.stderr)
        if "slurmctld" in self.daemons:
            subprocess.run(["scancel", "-u", "root", "--quiet"], env=self.environment, check=False, timeout=60,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                self._wait(lambda: not self.live(), "all jobs to end", 30)
            finally:
                self._kill_all()
        else:
            self._kill_all()

    def _kill_all(self):
        for name in sorted(self.daemons, key=lambda name: name == "munged"):
            self.daemons[name].send_signal(signal.SIGKILL)
            self.daemons[name].wait(30)
