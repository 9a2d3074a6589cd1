"""A user's first step: from the call of SubmitJob to the first metric, on a real worker, beside a long queue."""
import math
import time

from rows import clone, remove_queued, submit_one
from yard import Api, gpt, json_format, jobs_pb, resources_pb, text_file


def first_step(bench):
    """Small jobs one after the other on a real agent with one slot, while others wait for hardware that is busy. All
    times are the client's, on its monotonic clock: from before the call of SubmitJob until a watch, which it opens with
    the answer, has brought the item. The worker's own time of its first step, on the same machine's clock, is shown
    beside them."""
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    holder = rig.agents(1, 1, "gpu-", "CUDA", hold=True)
    held = submit_one(rig, "CUDA")  # takes the only GPU and keeps it
    rig.start_real_agent(1)
    text = text_file(rig.folder)
    api = Api(rig.address, (rig.folder / "admin").read_text().strip())
    for seed in range(3):
        watch_first_step(api, request_of(text, seed))  # what only the first jobs of a yard pay
    clone(rig, held.uid, sizes.queued, "other")
    bench.settle()
    times = [watch_first_step(api, request_of(text, 100 + i)) for i in range(sizes.first_steps)]
    late = bench.note_lateness(holder)
    api.close()
    waiting = int(rig.sql("SELECT count(*) FROM jobs WHERE state = 'QUEUED'"))
    if waiting != sizes.queued:
        raise SystemExit(f"{waiting} jobs waited to the end, not {sizes.queued}")
    of = {stage: sorted(t[stage] for t in times) for stage in times[0]}
    bench.tell("first_step_p99_ms", quantile(of["first step"], 0.99),
               f"of {len(times)}, {sizes.queued} queued on other hardware; longest {of['first step'][-1]:.0f} ms, "
               f"heartbeats p99.9 {late['late_ms_p999']:.0f} ms")
    bench.tell("first_step_p50_ms", quantile(of["first step"], 0.5))
    for stage, until in of.items():
        print(f"{'':>28}  {stage:>25} after {quantile(until, 0.5):>6.1f} ms, p99 {quantile(until, 0.99):>6.1f}")
    remove_queued(rig)
    holder.end()
    rig.stop_real_agent()
    rig.stop_server()


def request_of(text, seed):
    """A small character GPT; one like no other, as those of users are."""
    spec = gpt(text, 3)
    spec |= {"training": dict(spec["training"], seed=seed), "schedule": {"learning_rate": 1e-3},
             "resources": {"device": "CPU"}}
    job = resources_pb.Job(spec=json_format.ParseDict(spec, resources_pb.Job().spec))
    return jobs_pb.SubmitJobRequest(parent="projects/default", job=job)


def watch_first_step(api, request):
    """Milliseconds until the client knew of each stage. Returns when the job has ended."""
    began, began_at = time.monotonic(), time.time()
    reached = {}

    def reach(stage):
        reached.setdefault(stage, 1000 * (time.monotonic() - began))

    name = api.job.SubmitJob(request).name
    reach("submitted")
    for answer in api.job.WatchJob(jobs_pb.WatchJobRequest(name=name), timeout=60):
        item = answer.item
        if item.HasField("state") and item.state.to == resources_pb.STARTING:
            reach("placed")
        if item.HasField("state") and item.state.to == resources_pb.RUNNING:
            reach("running")
        if item.HasField("metrics") and "first step" not in reached:
            reach("first step")
            reached["first step, by the worker"] = 1000 * (item.time.ToMicroseconds() / 1e6 - began_at)
        if answer.HasField("end") and answer.end.job.state != resources_pb.SUCCEEDED:
            raise SystemExit(f"a job ended otherwise than expected: {answer.end.job}")
    if "first step" not in reached:
        raise SystemExit(f"{name} made no step that its watcher saw")
    return reached


def quantile(ordered, p):
    return ordered[max(1, math.ceil(p * len(ordered))) - 1]
