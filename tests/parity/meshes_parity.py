"""Holds ranks that share a job against PyTorch in one process: same weights, same batches, same optimizer, 50 steps in fp32.

    meshes_parity.py --tool PARITY_DUMP --worker TRAINYARD_WORKER

Each loss of each mesh, made by as many processes as it has ranks, is within 1e-4 relative of PyTorch's. Weights, batches
and rates to begin with are those that parity_dump writes on one rank: a mesh changes none of them.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch

from parity import CASES, Checks, OURS, dump, train

# By case: groups of logical ranks x stages x ranks that share shards, and what is shared out besides.
MESHES = {
    "gpt": ["2x2x2", "2x1x4", "4x2x1", "1x3x1"],
    "llama": ["2x2x2", "1x1x2"],
    "bert": ["2x2x2"],
    "vit": ["2x2x2", "3x1x1 PARAMETERS"],
    "mlp": ["8x1x1 GRADIENTS", "3x1x1 OPTIMIZER"],
}
LOGICAL_RANKS = 8
MOST = 1e-4


def losses_of(worker, folder, mesh):
    """The loss of each step of the job in `folder` on `mesh`."""
    shape, _, shard = mesh.partition(" ")
    groups, stages, sharing = map(int, shape.split("x"))
    ranks = groups * stages * sharing
    sets = [f"parallel.logical_ranks={LOGICAL_RANKS}", f"resources.min_slots={ranks}", "resources.device=CPU"]
    if shard:
        sets += [f"parallel.shard={shard}"]
    if sharing > 1:
        sets += [f"parallel.tensor={sharing}", f"parallel.layout.tensor={sharing}"]
    if stages > 1:
        sets += [f"parallel.pipeline={stages}", f"parallel.layout.pipeline={stages}"]
    metrics = f"{folder}/{mesh}.jsonl"
    done = subprocess.run([worker, "--spec", f"{folder}/job.yaml", "--out", f"{folder}/{mesh}", "--ranks", str(ranks),
                           "--threads", "1", "--metrics", metrics, *(x for s in sets for x in ("--set", s))],
                          env=OURS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{mesh}: exit code {done.returncode}\n{done.stdout}")
    with open(metrics) as lines:
        found = [json.loads(line) for line in lines]
    return torch.tensor([line["loss"] for line in found if line["split"] == "train"], dtype=torch.float64)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--worker", required=True)
    options = parser.parse_args()
    torch.set_num_threads(2)
    checks = Checks()
    for name, meshes in MESHES.items():
        # As the worker begins: without the larger start that shows errors of gradients. Each logical rank has a micro-batch.
        case = dict(CASES[name], precision="FP32", steps=50, scale=1, batch=16, micro=16 // LOGICAL_RANKS)
        with tempfile.TemporaryDirectory() as folder:
            ours = dump(os.path.abspath(options.tool), case, folder, None)
            theirs = torch.tensor(train(case, ours, checks)[0], dtype=torch.float64)
            for mesh in meshes:
                losses = losses_of(os.path.abspath(options.worker), folder, mesh)
                checks.within(f"{name} on {mesh}: losses that are missing", abs(len(losses) - len(theirs)), 0)
                gap = ((losses - theirs).abs() / theirs).max().item()
                checks.within(f"{name} on {mesh}: worst of {len(theirs)} losses", gap, MOST)
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
