"""Submissions beside pgbench, which inserts the same rows, and what of them outlives a kill of the server."""
import json
import os
import statistics
import subprocess
import threading
import time

import grpc

from figures import NODES, SLOTS
from rig import BIN
from rows import remove_queued, request_for, submit_one
from yard import Api, jobs_pb


class Submitter(threading.Thread):
    """Submits jobs one after the other, `batch` a call (0: by SubmitJob), until a call fails."""

    def __init__(self, rig, name, batch):
        super().__init__(daemon=True)
        self.name, self.batch = name, batch
        self.answered, self.unanswered = {}, []  # uid by request id; request ids of the last call
        self.request = request_for("CPU", 7)
        self.error = None
        self.api = Api(rig.address, (rig.folder / "admin").read_text().strip())
        self.start()

    def run(self):
        count = 0
        try:
            while True:
                self.unanswered = [f"{self.name}-{count + i}" for i in range(max(1, self.batch))]
                self.answered |= self.submit(self.api, self.unanswered)
                count += len(self.unanswered)
        except grpc.RpcError as error:
            self.error = error
        self.api.close()

    def submit(self, api, request_ids):
        if not self.batch:
            request = jobs_pb.SubmitJobRequest()
            request.CopyFrom(self.request)
            request.request_id = request_ids[0]
            return {request_ids[0]: api.job.SubmitJob(request, wait=False).uid}
        batch = jobs_pb.BatchSubmitJobsRequest(parent=self.request.parent)
        for request_id in request_ids:
            batch.requests.add(job=self.request.job, request_id=request_id)
        results = api.job.BatchSubmitJobs(batch, wait=False).results
        if any(not result.HasField("job") for result in results):
            raise SystemExit(f"a job of a batch was refused: {results}")
        return {request_id: result.job.uid for request_id, result in zip(request_ids, results)}


def submissions(bench):
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    agents = rig.agents(NODES, SLOTS, "gpu-", "CUDA", hold=True)
    request = rig.folder / "request"
    request.write_bytes(request_for("CPU").SerializeToString())
    holder = rig.agents(1, 1, "one-cpu-", "CPU", hold=True)  # a kind that exists, and is busy
    template = submit_one(rig, "CPU").uid
    rig.sql("CREATE DATABASE peer TEMPLATE template0", "postgres")
    subprocess.run([BIN / "trainyard-server", "migrate", "--database", rig.conninfo("peer")],
                   stderr=subprocess.DEVNULL, check=True)
    script = rig.folder / "insert.sql"
    script.write_text(peer_script(bench, template))
    shares = []
    for clients in (1, 4, 32):
        turns = []
        for _ in range(sizes.turns):
            peer = pgbench(bench, script, clients)
            ours = rig.call("submit", "--request", request, "--clients", clients, "--seconds", sizes.submit_seconds)
            turns.append((ours["per_second"], peer, ours["p99_ms"]))
            bench.settle()  # pgbench does not pay for what the leader has still to do
        ours, peer = statistics.median(t[0] for t in turns), statistics.median(t[1] for t in turns)
        shares.append(statistics.median(t[0] / t[1] for t in turns))
        bench.tell(f"submit_{clients}", ours, f"pgbench {peer:.0f}/s, share {shares[-1]:.3f}, p99 "
                                             f"{statistics.median(t[2] for t in turns):.1f} ms")
    bench.tell("submit_share", min(shares))
    batches(bench, script, request)
    bench.note_lateness(agents)
    remove_queued(rig)
    agents.end()
    holder.end()
    rig.stop_server()


def batches(bench, script, request):
    """256 jobs a call from one client, over pgbench with one client, which commits them one by one."""
    turns = []
    for _ in range(bench.sizes.turns):
        peer = pgbench(bench, script, 1)
        ours = bench.rig.call("submit", "--request", request, "--clients", 1, "--batch", 256, "--seconds",
                             bench.sizes.submit_seconds)
        turns.append((ours["per_second"], peer, ours["p50_ms"]))
    ours, peer, call = (statistics.median(turn[i] for turn in turns) for i in range(3))
    bench.tell("submit_batches", ours, f"jobs in calls of 256, {call:.0f} ms a call; pgbench {peer:.0f}/s")
    bench.tell("batch_share", statistics.median(turn[0] / turn[1] for turn in turns))


def peer_script(bench, uid):
    """The rows of one submission in one statement, with the values of a job that was submitted."""
    def literal(value):  # without a colon, which pgbench takes for the beginning of a variable
        text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
        return "E'" + text.replace("\\", "\\\\").replace("'", "''").replace(":", "\\x3a") + "'"

    def values(table, key, own):
        row = json.loads(bench.rig.sql(f"SELECT row_to_json(t) FROM {table} t WHERE {key} = '{uid}'"))
        row = {k: "NULL" if v is None else literal(v) for k, v in row.items()} | own
        return f"({', '.join(row)}) ", ", ".join(row.values())
    jobs = values("jobs", "uid", {
        "uid": "md5(random()::text || clock_timestamp())", "job_id": "'mlp-' || md5(random()::text)",
        "state": "'QUEUED'", "attempt": "0", "version": "1", "start_time": "NULL", "reason_code": "'SUBMITTED'",
        "reason_message": "'waits for the scheduler to look at it'",
        "create_time": "clock_timestamp()", "update_time": "clock_timestamp()"})
    specs = values("job_specs", "job_uid", {"job_uid": "uid", "job_id": "job_id", "create_time": "create_time"})
    return (f"WITH job AS (INSERT INTO jobs {jobs[0]} VALUES ({jobs[1]}) RETURNING uid, job_id, create_time) "
            f"INSERT INTO job_specs {specs[0]} SELECT {specs[1]} FROM job;\n")


def pgbench(bench, script, clients):
    seconds = max(2, round(bench.sizes.submit_seconds))
    done = subprocess.run([bench.rig.postgres_bin / "pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j",
                           str(min(clients, os.cpu_count())), "-T", str(seconds), "-f", script,
                           bench.rig.conninfo("peer")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        raise SystemExit(f"pgbench: {done.stderr[:2000]}")
    return next(float(line.split("=")[1].split()[0]) for line in done.stdout.splitlines() if line.startswith("tps"))


def kills(bench):
    """The server is killed in the middle of submissions, single ones and batches. Whatever was answered with a job must
    be there when the next one has started, and what was not answered is sent again and makes each job once."""
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    submit_one(rig, "CPU")
    answered, sent, lost, in_doubt = {}, 0, 0, 0
    for turn in range(sizes.kills):
        clients = [Submitter(rig, f"{turn}-{i}", batch) for i, batch in enumerate((0, 0, 0, 64, 256))]
        deadline = time.monotonic() + 60
        # Never at the same place, and not before each has got an answer.
        while min(len(c.answered) for c in clients) < 1 or sum(len(c.answered) for c in clients) < 1000 + 137 * turn:
            if time.monotonic() > deadline or not all(c.is_alive() for c in clients):
                raise SystemExit("the submissions do not get on: " + "; ".join(str(c.error) for c in clients))
            time.sleep(0.001)
        rig.kill_server()
        for client in clients:
            client.join(60)
            if client.is_alive() or client.error.code().name != "UNAVAILABLE":
                raise SystemExit(f"a client ended with {client.error}")
        rig.start_server()
        api = Api(rig.address, (rig.folder / "admin").read_text().strip())
        for client in clients:
            sent += len(client.answered)
            in_doubt += len(client.unanswered)
            answered |= client.answered | client.submit(api, client.unanswered)
        api.close()
        stored = set(rig.sql("SELECT request_id || ' ' || uid FROM jobs WHERE request_id IS NOT NULL").split("\n"))
        specs = set(rig.sql("SELECT job_uid FROM job_specs").split("\n"))
        lost = sum(f"{request_id} {uid}" not in stored or uid not in specs for request_id, uid in answered.items())
        if lost:
            break
        if len(stored) != len(answered):
            raise SystemExit(f"{len(answered)} jobs were asked for, {len(stored)} are there")
    bench.tell("lost_submissions", lost, f"of {sent} acknowledged before {turn + 1} kills of the server; {in_doubt} "
                                        f"were in doubt and sent again")
    rig.stop_server()
