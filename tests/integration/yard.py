"""A local yard for tests: `trainyard local start` in a temporary folder, its API, its processes, and a
watcher that reconnects. Python is for tests only; /usr/bin/python3 with python3-grpcio and
python3-protobuf."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TRAINYARD_BIN", REPOSITORY / "build/bin"))

_generated = tempfile.TemporaryDirectory(prefix="trainyard-protos-")
subprocess.run(["protoc", "-I", str(REPOSITORY / "proto"), f"--python_out={_generated.name}",
                *(str(file) for folder in ("trainyard/v1", "google/rpc")
                  for file in (REPOSITORY / "proto" / folder).glob("*.proto"))], check=True)
sys.path.insert(0, _generated.name)
import grpc  # noqa: E402
from links import free_port  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from trainyard.v1 import job_service_pb2 as jobs_pb  # noqa: E402
from trainyard.v1 import resources_pb2 as resources_pb  # noqa: E402
from trainyard.v1 import run_pb2 as run_pb  # noqa: E402
from trainyard.v1 import run_services_pb2 as run_services_pb  # noqa: E402

ENDED = {resources_pb.SUCCEEDED, resources_pb.FAILED, resources_pb.CANCELLED}


def eventually(condition, seconds=30, what=""):
    """Waits, without a wake-up to wait for, until `condition` returns something true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(0.01)


class Api:
    """The services by name: api.job.SubmitJob(request). Calls carry the token. With an `authority` (PEM) they go by TLS.

    With `patient` a call that finds PostgreSQL or the server on its way back is made again: each is one that
    may be, a submission by its request id."""

    patient = False

    def __init__(self, address, token, authority=None):
        options = [
            ("grpc.enable_http_proxy", 0), ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 1000), ("grpc.max_reconnect_backoff_ms", 200),
            ("grpc.use_local_subchannel_pool", 1), ("grpc.keepalive_time_ms", 10000),
            ("grpc.keepalive_timeout_ms", 5000), ("grpc.http2.max_pings_without_data", 0)]
        self.channel = (grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options) if authority
                        else grpc.insecure_channel(address, options))
        self.metadata = [("authorization", f"Bearer {token}")]
        self.job = self._service(jobs_pb, "JobService")
        self.metric = self._service(run_services_pb, "MetricService")
        self.log = self._service(run_services_pb, "LogService")
        self.checkpoint = self._service(run_services_pb, "CheckpointService")
        self.node = self._service(run_services_pb, "NodeService")

    def _service(self, module, name):
        service = type(name, (), {})()
        descriptor = module.DESCRIPTOR.services_by_name[name]
        for method in descriptor.methods:
            # protobuf 3.21 for Python does not say which methods stream: their names do.
            streams = method.name in ("WatchJob", "StreamMetrics", "TailLogs")
            make = self.channel.unary_stream if streams else self.channel.unary_unary
            call = make(f"/{descriptor.full_name}/{method.name}",
                        request_serializer=lambda m: m.SerializeToString(),
                        response_deserializer=self._class(method.output_type).FromString)
            setattr(service, method.name, self._with_token(call))
        return service

    @staticmethod
    def _class(descriptor):
        from google.protobuf import message_factory, symbol_database
        try:
            return symbol_database.Default().GetSymbol(descriptor.full_name)
        except KeyError:
            return message_factory.MessageFactory().GetPrototype(descriptor)

    def _with_token(self, call):
        def invoke(request, timeout=20, wait=True):
            deadline = time.monotonic() + timeout
            while True:
                left = max(0.1, deadline - time.monotonic())
                try:
                    return call(request, timeout=left, metadata=self.metadata, wait_for_ready=wait)
                except grpc.RpcError as error:
                    if (not self.patient or error.code() != grpc.StatusCode.UNAVAILABLE
                            or time.monotonic() > deadline):
                        raise
                time.sleep(0.02)
        return invoke

    def let_connect(self, seconds):
        """gRPC gets on with a connection while somebody waits for it, and a call does not once it has failed."""
        try:
            grpc.channel_ready_future(self.channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            pass

    def close(self):
        self.channel.close()


class Yard:
    """`with Yard() as yard:` runs one; everything is gone afterwards."""

    def __init__(self, cpu_slots=1, threads_per_slot=1, programs=BIN):
        self.cpu_slots, self.threads_per_slot, self.programs = cpu_slots, threads_per_slot, programs

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="trainyard-test-")
        os.chmod(self._folder.name, 0o755)  # user postgres must reach its data
        self.dir = os.path.realpath(self._folder.name) + "/yard"
        self.environment = dict(os.environ, XDG_CONFIG_HOME=self._folder.name + "/config", NO_COLOR="1")
        try:
            # A port that no other yard takes while the server is away.
            self.call("local", "start", "--dir", self.dir, "--cpu-slots", str(self.cpu_slots),
                      "--threads-per-slot", str(self.threads_per_slot), "--port", str(free_port()))
            config = json.loads(pathlib.Path(self.dir, "yard.json").read_text())
            self.address = f"127.0.0.1:{config['port']}"
            self.token = pathlib.Path(self.dir, "tokens/admin").read_text().strip()
            self.api = Api(self.address, self.token)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, *_):
        if hasattr(self, "api"):
            self.api.close()
        if kind is not None:
            print(self.logs(), file=sys.stderr)
        self.run("local", "stop", "--dir", self.dir, "--purge")
        self._folder.cleanup()

    def logs(self):
        """The end of each log: of the yard's processes and of every rank that its agent still keeps."""
        logs = sorted(pathlib.Path(self.dir, "logs").glob("*.log")) + sorted(pathlib.Path(self.dir).glob("**/ranks/*/log"))
        parts = []
        for log in logs:
            lines = log.read_text(errors="replace").splitlines()[-30:]
            parts += [f"--- {log.relative_to(self.dir)}", *lines]
        return "\n".join(parts)

    def run(self, *arguments, program=None, **more):
        return subprocess.run([str(program or self.programs / "trainyard"), *arguments], env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

    def call(self, *arguments):
        done = self.run(*arguments)
        if done.returncode != 0:
            raise AssertionError(f"trainyard {' '.join(arguments)}: exit code {done.returncode}\n"
                                 f"{done.stdout}{done.stderr}")
        return done.stdout

    # --- processes ------------------------------------------------------------------------------

    def processes(self):
        """Live processes of the yard: {pid: command line}."""
        mark = f"TRAINYARD_YARD={self.dir}".encode()
        found = {}
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                with open(f"/proc/{entry.name}/environ", "rb") as f:
                    if mark not in f.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry.name}/cmdline", "rb") as f:
                    command = f.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if command:  # a zombie has none
                found[int(entry.name)] = command
        return found

    def pid(self, part):
        """Of postgres, server, agent or supervisor; None while it is down."""
        try:
            pid = int(pathlib.Path(self.dir, "run", part + ".pid").read_text().split()[0])
            os.kill(pid, 0)
            return pid
        except (OSError, ValueError, IndexError):
            return None

    def store_pids(self):
        """PostgreSQL's processes."""
        main = self.pid("postgres")
        with open(f"/proc/{main}/task/{main}/children") as f:
            return [main] + [int(pid) for pid in f.read().split()]

    def training_pids(self, state_dir=None):
        """Workers that hold a rank (not those that wait for one)."""
        ranks = (state_dir or self.dir + "/agent") + "/ranks/"
        pids = []
        for pid, command in self.processes().items():
            try:
                if "trainyard-worker" in command and os.readlink(f"/proc/{pid}/cwd").startswith(ranks):
                    pids.append(pid)
            except OSError:
                pass
        return pids

    def stop_postgres(self, mode):
        binaries = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
        command = [str(binaries[-1] / "pg_ctl"), "-D", self.dir + "/postgres/data", "-m", mode, "-W", "stop"]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    # --- jobs -----------------------------------------------------------------------------------

    def submit(self, spec, job_id="", **job):
        job = resources_pb.Job(
            job_id=job_id, spec=json_format.ParseDict(spec, resources_pb.Job().spec), **job)
        request = jobs_pb.SubmitJobRequest(parent="projects/default", job=job, request_id=uuid.uuid4().hex)
        return self.api.job.SubmitJob(request)

    def get(self, name):
        return self.api.job.GetJob(jobs_pb.GetJobRequest(name=name))

    def wait_for(self, name, states, seconds=60):
        if isinstance(states, int):
            states = {states}

        def reached():
            job = self.get(name)
            if job.state in states:
                return job
            if job.state in ENDED:
                raise AssertionError(f"{name} ended: {job}")
            return None
        return eventually(reached, seconds, f"{name} in {states}")

    def wait_for_step(self, name, step, seconds=60):
        return eventually(lambda: self.get(name).step >= step, seconds, f"step {step} of {name}")

    def metrics(self, name, split=run_pb.MetricPoint.TRAIN, superseded=False):
        points, token = [], ""
        while True:
            page = self.api.metric.QueryMetrics(run_services_pb.QueryMetricsRequest(
                job=name, split=split, include_superseded=superseded, page_size=10000, page_token=token))
            points.extend(page.points)
            token = page.next_page_token
            if not token:
                return points

    def checkpoints(self, name):
        return list(self.api.checkpoint.ListCheckpoints(
            run_services_pb.ListCheckpointsRequest(parent=name)).checkpoints)

    def final_digest(self, name):
        """Digest of the finished model's weights."""
        finals = [c for c in self.checkpoints(name) if c.final]
        return finals[0].weights_sha256 if len(finals) == 1 else None


class Watcher:
    """Follows a job's feed from its beginning, over any number of broken streams, to its end."""

    def __init__(self, yard, name):
        self.items, self.breaks, self.end, self.error = [], 0, None, None
        self._api, self._name = self._connect(yard), name
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _connect(self, yard):
        return Api(yard.address, yard.token)

    def _run(self):
        while self.end is None and self.error is None:
            try:
                cursor = self.items[-1].sequence if self.items else 0
                for answer in self._api.job.WatchJob(
                        jobs_pb.WatchJobRequest(name=self._name, after_sequence=cursor), timeout=600):
                    if answer.HasField("item"):
                        self.items.append(answer.item)
                    elif answer.HasField("end"):
                        self.end = answer.end.job
            except grpc.RpcError as error:
                self.breaks += 1
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED,
                                        grpc.StatusCode.UNKNOWN, grpc.StatusCode.ABORTED,
                                        grpc.StatusCode.INTERNAL):
                    self.error = error
                time.sleep(0.02)

    def join(self, seconds):
        self._thread.join(seconds)
        self._api.close()
        return self.end is not None

    def missed(self):
        """How many items of the feed it did not see exactly once and in order."""
        return sum(1 for i, item in enumerate(self.items, 1) if item.sequence != i)

    def series(self):
        """{step: values} of TRAIN as somebody who watched would draw it."""
        series = {}
        for item in self.items:
            if item.HasField("attempt_started"):
                for step in [s for s in series if s > item.attempt_started.step]:
                    del series[step]
            elif item.HasField("metrics") and item.metrics.split == run_pb.MetricPoint.TRAIN:
                series[item.metrics.step] = dict(item.metrics.values)
        return series


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
        return True
    except OSError:
        return False


def without_timings(values):
    """What does not depend on the clock: equal bits are expected of it."""
    return {k: v for k, v in values.items()
            if not k.endswith(("_ms", "_per_second")) and k not in ("mfu", "peak_memory_bytes")
            and not k.startswith(("rank.", "ranks."))}


def values_of(points):
    """{step: values} of points of one split."""
    return {p.point.step: without_timings(p.point.values) for p in points}


def text_file(folder):
    """A text with some structure, the same everywhere."""
    path = pathlib.Path(folder, "text.txt")
    words = "the train waits in the yard until a slot is free and then it runs".split()
    state, text = 1, []
    for _ in range(20000):
        state = (state * 1103515245 + 12345) % 2**31
        text.append(words[(state >> 16) % len(words)])
    path.write_text(" ".join(text))
    return str(path)


def poisoned_clicks(folder):
    """480 clicks; those of row 200 are the largest numbers there are, and overflow in the first product."""
    path = pathlib.Path(folder, "poisoned.csv")
    lines = ["click,city," + ",".join(f"n{j}" for j in range(24))]
    for i in range(480):
        numbers = ["3e38" if i == 200 else str((i * 37 + j) % 11 * 0.1) for j in range(24)]
        lines.append(f"{i % 3 % 2},c{i % 7}," + ",".join(numbers))
    path.write_text("\n".join(lines))
    return str(path)


def recommender(clicks, steps, policy, **checkpoint):
    """A small recommender on poisoned_clicks; the steps of an epoch are 54."""
    return {
        "model": {"dlrm": {"embedding_width": 4, "bottom": [64], "top": [6]}},
        "data": {"csv": {"train": clicks, "label": "click", "dense": [f"n{j}" for j in range(24)],
                         "categorical": ["city"], "hash_buckets": 16}},
        "training": {"steps": steps, "batch_size": 8, "seed": 7, "on_non_finite": policy},
        "optimizer": {"adamw": {}},
        "checkpoint": checkpoint,
        "retry": {"max_restarts": 20, "backoff_seconds": 0.05},
    }


def gpt(text, steps, **checkpoint):
    """A small character GPT."""
    return {
        "model": {"gpt": {"layers": 2, "heads": 2, "width": 64, "context": 32, "dropout": 0.1}},
        "data": {"text": {"path": text}},
        "training": {"steps": steps, "batch_size": 8, "seed": 7},
        "optimizer": {"adamw": {}, "clip_norm": 1.0},
        "schedule": {"learning_rate": 1e-3, "shape": "COSINE", "warmup_steps": 20},
        "evaluation": {"max_samples": 64},
        "checkpoint": checkpoint,
        "retry": {"max_restarts": 20, "backoff_seconds": 0.05},
    }
