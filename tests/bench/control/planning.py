"""Passes of the planner, over all jobs and over what changed."""
import json
import subprocess

from rig import BIN
from rows import clone, submit_one


def passes(bench):
    done = subprocess.run([BIN / "control_load", "pass", "--queued", str(bench.sizes.pass_queued), "--nodes", "1000",
                           "--slots", "8", "--rounds", "5"], stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout)
    bench.tell("pass_ms", told["p50_ms"], f"a full pass of the planner alone, {bench.sizes.pass_queued} queued, 8000 slots; "
              f"a new leader's first, its state made anew: {told['anew_p50_ms']:.0f} ms")
    delta(bench)


def delta(bench):
    """Reads, folds and plans what changed, beside a long queue and as many busy slots."""
    rig, sizes = bench.rig, bench.sizes
    rig.start_server()
    template = submit_one(rig, "CUDA").uid
    rig.stop_server()
    nodes = 1000 if sizes.pass_queued >= 100000 else 100
    slots = json.dumps([{"index": s, "device": "CUDA", "model": "", "memory_bytes": 80 << 30, "cpu_threads": 0}
                        for s in range(8)])
    rig.sql(f"""INSERT INTO nodes (name, address, agent_version, labels, slots, draining, reachable, create_time)
                SELECT 'node-' || n, '', '', '{{}}', '{slots}', false, true, now() FROM generate_series(1, {nodes}) n;
                INSERT INTO leases (node, incarnation, beat, held, lease_end, usage)
                SELECT name, 'a', 1, true, now() + interval '10 s', '[]' FROM nodes""")
    clone(rig, template, nodes * 8, "running")
    rig.sql(f"""
        UPDATE jobs SET state = 'STARTING', attempt = 1, version = 2 WHERE job_id LIKE 'running-%';
        UPDATE jobs SET state = 'RUNNING', version = 3, start_time = now() WHERE job_id LIKE 'running-%';
        INSERT INTO ranks (job_uid, attempt, rank, node, slots, state, outcome, acked_sequence, world_size, restore_step,
                           restore_uri, restore_manifest_sha256, create_time)
        SELECT uid, 1, 0, 'node-' || 1 + (n - 1) / 8, ARRAY[(n - 1) % 8], 'RUNNING', 'NONE', 1, 1, 0, '', '', now()
        FROM (SELECT uid, split_part(job_id, '-', 2)::integer AS n FROM jobs WHERE job_id LIKE 'running-%') r""")
    clone(rig, template, sizes.pass_queued, "queued")
    rig.sql("VACUUM ANALYZE; CHECKPOINT")
    done = subprocess.run([BIN / "control_load", "delta", "--database", rig.conninfo("yard"), "--rounds", "200"],
                          stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout)
    bench.tell("delta_ms", told["p50_ms"], f"one job changed: read ({told['read_p50_ms']:.1f} ms), folded and planned; {told['queued']} queued, "
              f"{told['holders']} slots busy on {told['nodes']} nodes; p99 {told['p99_ms']:.1f} ms, a new leader's first "
              f"pass {told['first_ms']:.0f} ms")
