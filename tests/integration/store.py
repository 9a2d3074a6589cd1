"""A PostgreSQL of a test's own on a port of its own, and a synchronous stand-by of it whose clock may be wrong."""
import os
import pathlib
import shutil
import signal
import subprocess

BINARIES = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def as_postgres(*command):
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else list(command)


class Postgres:
    """The cluster in `folder`; `more`: settings. `clock`: seconds by which its clock is ahead."""

    def __init__(self, folder, port, clock=0, **more):
        self.folder, self.port, self.clock = pathlib.Path(folder), port, clock
        self.data = self.folder / "data"
        # Tests kill processes, not machines: what PostgreSQL wrote is in the kernel's hands, and is not lost.
        self.settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": self.folder, "fsync": "off",
                         "max_connections": 150, "shared_buffers": "64MB", "synchronous_standby_names": "",
                         "timezone": "UTC", **more}

    def _own_folder(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")

    def _run(self, program, *arguments, **more):
        environment = dict(os.environ, **more)
        done = subprocess.run(as_postgres(str(BINARIES[-1] / program), *map(str, arguments)), env=environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/")
        if done.returncode != 0:
            raise AssertionError(f"{program}: {done.stdout}")

    def make(self):
        self._own_folder()
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        return self

    def make_stand_by_of(self, primary):
        """A copy that follows `primary`, which waits for it before it answers a commit, from now on."""
        self._own_folder()
        self._run("pg_basebackup", "-D", self.data, "-R", "-X", "stream", "-c", "fast", "-h", "127.0.0.1", "-p", primary.port,
                  "-U", "postgres")
        self.start()
        primary.settings["synchronous_standby_names"] = "*"
        primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.query("SELECT pg_reload_conf()")
        return self

    def start(self):
        options = " ".join(f"-c {name}='{value}'" for name, value in self.settings.items()
                           if name != "synchronous_standby_names" or not value)
        if self.settings["synchronous_standby_names"]:  # by ALTER SYSTEM
            options = options.replace("-c synchronous_standby_names=''", "")
        more = {}
        if self.clock:
            more = {"LD_PRELOAD": FAKETIME, "FAKETIME": f"{self.clock:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        environment = [f"{name}={value}" for name, value in more.items()]
        command = as_postgres("env", *environment, str(BINARIES[-1] / "pg_ctl"), "-D", str(self.data), "-l",
                              str(self.folder / "log"), "-w", "-t", "60", "-o", options, "start")
        done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, cwd="/")
        if done.returncode != 0:
            raise AssertionError((self.folder / "log").read_text()[-3000:])

    def stop(self, mode="immediate"):
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def promote(self):
        self._run("pg_ctl", "-D", self.data, "-w", "promote")

    def pids(self):
        """Its processes, the first one their parent; none when it is down."""
        try:
            main = int((self.data / "postmaster.pid").read_text().split()[0])
            with open(f"/proc/{main}/task/{main}/children") as f:
                return [main] + [int(pid) for pid in f.read().split()]
        except (OSError, ValueError, IndexError):
            return []

    def signal(self, number):
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except OSError:
                pass

    def freeze(self):
        self.signal(signal.SIGSTOP)

    def thaw(self):
        self.signal(signal.SIGCONT)

    def query(self, sql):
        """What psql prints: rows of columns with | between them."""
        done = subprocess.run([str(BINARIES[-1] / "psql"), "-X", "-A", "-t", "-h", "127.0.0.1", "-p", str(self.port), "-U",
                               "postgres", "-d", "postgres", "-c", sql], text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise AssertionError(f"{sql}: {done.stderr}")
        return done.stdout.strip()
