"""The peer: PyTorch's DistributedDataParallel over gloo, and gloo's all-reduce.

    torch_ranks.py --model gpt2|char_gpt|resnet18|cnn|dlrm --ranks N [--threads N] [--steps N]
    torch_ranks.py --all-reduce MIB --ranks N

Each rank takes a batch of the engine bench; one rank alone takes the batches of two at once, so that the global batch is
that of two ranks. Prints one JSON object: the median milliseconds of a step, or of an all-reduce, on rank 0.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "engine"))
import torch_step  # noqa: E402


def median_ms(run, repeat, warm_up=3):
    times = []
    for _ in range(warm_up + repeat):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[warm_up:])


def rank_of(rank, options, port):
    torch.set_flush_denormal(True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(1337 + rank)
    if options.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    if options.all_reduce:
        gradients = torch.ones(options.all_reduce << 18)
        ms = median_ms(lambda: dist.all_reduce(gradients), 21)
    else:
        model, draw, loss_of, optimizer = torch_step.case_of(options.model)
        batches = [[draw() for _ in range(2 if options.ranks == 1 else 1)] for _ in range(4)]
        batches = [[torch.cat(parts) for parts in zip(*batch)] for batch in batches]
        # What case_of's loss calls is the model; DistributedDataParallel must be called in its place.
        if options.ranks > 1:
            parallel = torch.nn.parallel.DistributedDataParallel
            # gloo broadcasts no masks.
            parallel._set_params_and_buffers_to_ignore_for_model(
                model, [name for name, buffer in model.named_buffers() if buffer.dtype == torch.bool])
            wrapped = parallel(model)
            functional = torch.nn.functional
            loss = functional.binary_cross_entropy_with_logits if options.model == "dlrm" else functional.cross_entropy
            loss_of = lambda *batch: loss(wrapped(*batch[:-1]).float(), batch[-1])
        step = iter(range(1 << 30))

        def run():
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(*batches[next(step) % len(batches)])
            loss.backward()
            optimizer.step()
            loss.item()
        ms = median_ms(run, options.steps)
    if rank == 0:
        print(json.dumps({"ms": ms, "torch": torch.__version__}), flush=True)
    if options.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--all-reduce", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if options.ranks == 1:
        return rank_of(0, options, port)
    mp.spawn(rank_of, (options, port), nprocs=options.ranks)


if __name__ == "__main__":
    main()
