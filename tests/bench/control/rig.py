"""A PostgreSQL with fsync and a trainyard-server of its own for the benchmark of the control plane, and what is read
of both: rows written, cores used, heartbeats."""
import json
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time

BIN = pathlib.Path(os.environ.get("TRAINYARD_BIN", pathlib.Path(__file__).resolve().parents[3] / "build/bin"))
TICKS = os.sysconf("SC_CLK_TCK")


def newest_postgres():
    folders = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    if not folders:
        raise SystemExit("no PostgreSQL below /usr/lib/postgresql: install the package postgresql")
    return folders[-1]


class Load:
    """One control_load that answers a line per line: agents or watchers. Ends with its standard input."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args} ended in the middle")
        return json.loads(answer)

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


class Rig:
    """`with Rig() as rig:` runs PostgreSQL and one server over it; both are gone afterwards."""

    def __enter__(self):
        self.postgres_bin = newest_postgres()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainyard-bench-"))
        self.folder.chmod(0o755)
        self.as_postgres = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            self.data = self.folder / "pg"
            self.data.mkdir()
            os.chown(self.data, user.pw_uid, user.pw_gid)
            self.as_postgres = ["runuser", "-u", "postgres", "--"]
        else:
            self.data = self.folder / "pg"
            self.data.mkdir()
        self.postgres = self.server = self.real_agent = None
        self.loads = []
        try:
            self._start_postgres()
            for name in ("admin", "agent"):
                (self.folder / name).write_text(secrets.token_hex(32) + "\n")
                (self.folder / name).chmod(0o600)
            self.sql("CREATE DATABASE yard", "postgres")
            subprocess.run([BIN / "trainyard-server", "migrate", "--database", self.conninfo("yard")],
                           stderr=subprocess.DEVNULL, check=True)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        for load in self.loads:
            if load.process.poll() is None:
                load.end()
        self.stop_real_agent()
        self.stop_server()
        if self.postgres is not None:
            subprocess.run([*self.as_postgres, self.postgres_bin / "pg_ctl", "-D", self.data / "data", "-m", "fast",
                            "stop"], stdout=subprocess.DEVNULL, check=False)
            self.postgres.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_postgres(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "PG"))} | {"LC_ALL": "C"}
        subprocess.run([*self.as_postgres, self.postgres_bin / "initdb", "-D", self.data / "data", "-U", "trainyard",
                        "-A", "trust", "-E", "UTF8", "--no-locale"], stdout=subprocess.DEVNULL, cwd="/",
                       env=environment, check=True)
        with open(self.folder / "postgres.log", "w") as log:
            self.postgres = subprocess.Popen(
                [*self.as_postgres, self.postgres_bin / "postgres", "-D", self.data / "data", "-c", "listen_addresses=",
                 "-c", f"unix_socket_directories={self.data}", "-c", "fsync=on", "-c", "synchronous_commit=on"],
                stdout=log, stderr=log, cwd="/", env=environment)
        ready = [self.postgres_bin / "pg_isready", "-q", "-h", self.data]
        deadline = time.monotonic() + 30
        while subprocess.run(ready, check=False).returncode != 0:
            if time.monotonic() > deadline or self.postgres.poll() is not None:
                raise SystemExit((self.folder / "postgres.log").read_text())
            time.sleep(0.02)

    def conninfo(self, database):
        return f"host={self.data} user=trainyard dbname={database}"

    def sql(self, statement, database="yard"):
        done = subprocess.run([self.postgres_bin / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d",
                               self.conninfo(database), "-f", "-"], input=statement, stdout=subprocess.PIPE, text=True,
                              check=True)
        return done.stdout.strip()

    # --- the server and what loads it -----------------------------------------------------------

    def start_server(self):
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        with open(self.folder / "server.log", "a") as log:
            self.server = subprocess.Popen(
                [BIN / "trainyard-server", "--listen", "127.0.0.1:0", "--port-file", port_file, "--database",
                 self.conninfo("yard"), "--checkpoint-root", self.folder / "checkpoints", "--token-file",
                 f"admin:bench:{self.folder}/admin", "--token-file", f"agent:bench:{self.folder}/agent"],
                stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not port_file.exists():
            if time.monotonic() > deadline or self.server.poll() is not None:
                raise SystemExit((self.folder / "server.log").read_text())
            time.sleep(0.01)
        self.address = f"127.0.0.1:{port_file.read_text().strip()}"

    def stop_server(self):
        if self.server is not None:
            self.server.terminate()
            self.server.wait(30)
            self.server = None

    def kill_server(self):
        self.server.kill()
        self.server.wait(30)
        self.server = None

    def load(self, what, *arguments):
        token = "agent" if what in ("agents", "metrics") else "admin"
        return [str(part) for part in (BIN / "control_load", what, "--server", self.address, "--token-file",
                                       self.folder / token, *arguments)]

    def agents(self, nodes, slots, prefix, device="CPU", hold=False):
        """Agents that are registered when this returns."""
        load = Load(self.load("agents", "--nodes", nodes, "--slots", slots, "--prefix", prefix, "--device", device,
                              *(["--hold"] if hold else [])))
        self.loads.append(load)
        deadline = time.monotonic() + 120
        while load.ask("stats")["registered"] < nodes:
            if time.monotonic() > deadline:
                raise SystemExit("the agents could not register:\n" + (self.folder / "server.log").read_text()[-4000:])
            time.sleep(0.05)
        return load

    def start_real_agent(self, slots):
        """trainyard-agent itself, called `real`, with CPU slots of one thread and as many workers that wait for work."""
        state = self.folder / "agent-state"
        state.mkdir(mode=0o700)
        with open(self.folder / "agent.log", "w") as log:
            self.real_agent = subprocess.Popen(
                [BIN / "trainyard-agent", "--server", self.address, "--node", "real", "--token-file", self.folder / "agent",
                 "--state-dir", state, "--cpu-slots", str(slots), "--threads-per-slot", "1", "--standby", str(slots)],
                stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while self.sql("SELECT count(*) FROM nodes WHERE name = 'real'") == "0":
            if time.monotonic() > deadline or self.real_agent.poll() is not None:
                raise SystemExit((self.folder / "agent.log").read_text())
            time.sleep(0.05)

    def stop_real_agent(self):
        if self.real_agent is not None:
            self.real_agent.send_signal(signal.SIGINT)  # which ends its workers first
            self.real_agent.wait(30)
            self.real_agent = None

    def watch(self, names, watchers, connections):
        """Watchers of which each has got its first item when this returns."""
        file = self.folder / "names"
        file.write_text("\n".join(names) + "\n")
        load = Load(self.load("watch", "--names", file, "--watchers", watchers, "--connections", connections))
        self.loads.append(load)
        deadline = time.monotonic() + 120
        while load.ask("0 0")["began"] < watchers:
            if time.monotonic() > deadline:
                raise SystemExit("the watchers got no answer")
            time.sleep(0.1)
        return load

    def call(self, what, *arguments):
        done = subprocess.run(self.load(what, *arguments), stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)

    # --- what is read ---------------------------------------------------------------------------

    def rows_written(self):
        """Rows that were inserted, updated or deleted so far, by table, partitions summed up. A backend may keep its counts for ten seconds,
        but tells them when it ends: the server's are ended, and it connects again."""
        self.sql("SET client_min_messages = error; SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                 "WHERE datname = 'yard' AND backend_type = 'client backend' AND pid <> pg_backend_pid()")
        return json.loads(self.sql(
            "SELECT json_object_agg(name, rows) FROM (SELECT coalesce(i.inhparent::regclass::text, t.relname) AS name, "
            "sum(n_tup_ins + n_tup_upd + n_tup_del) AS rows FROM pg_stat_user_tables t "
            "LEFT JOIN pg_inherits i ON i.inhrelid = t.relid GROUP BY 1) AS tables"))

    def resident_kb(self):
        """Of the server."""
        status = pathlib.Path(f"/proc/{self.server.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def cpu_seconds(self):
        """Of the server and all processes of PostgreSQL, those that ended included."""
        main = int((self.data / "data/postmaster.pid").read_text().split()[0])
        total = 0.0
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            pid, parent = int(stat.parent.name), int(fields[1])
            if pid in (main, self.server.pid):
                total += sum(map(int, fields[11:15])) / TICKS
            elif parent == main:
                total += sum(map(int, fields[11:13])) / TICKS
        return total
