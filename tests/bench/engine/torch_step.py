"""The peer: training steps of PyTorch on the models of the engine bench.

    torch_step.py --model gpt2|char_gpt|resnet50|resnet18|cnn|dlrm [--bf16] [--steps N] [--threads N]
    torch_step.py --model gpt_124m|gpt_350m|gpt_1558m|gpt_small|resnet50_224 --cuda MODE [--bf16] [--steps N]

Prints one JSON object: the median and the best step in milliseconds (forward, backward, optimizer) without the first
three (of a GPU thirty), the peak bytes (resident of the process; of a GPU what is in use there), and the version.
Its best set-up on a CPU, as measured: denormals flushed to zero, OPENBLAS_CORETYPE=SkylakeX where the CPU has
AVX-512, channels_last for convolutions, sparse gradients for tables, the optimizer's `foreach` form where it is the
faster one. On a GPU: torch.compile in MODE ("default", "reduce-overhead" and "max-autotune" with CUDA graphs), bf16 by
autocast with fp32 weights, TF32 for what is left in fp32, cuDNN's benchmark, channels_last, the attention that is the
fastest of flash and cuDNN's, the optimizer's `fused` form, batches from pinned memory on a stream of their own while the
step before runs, images as bytes, results read once every ten steps.
"""
import argparse
import contextlib
import json
import math
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, bias, gelu):
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.mlp_proj = nn.Linear(4 * width, width, bias=bias)

    def attention(self, x, mask):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(C // self.heads))
            y = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x, mask):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate=self.gelu))


class Gpt(nn.Module):
    def __init__(self, vocab, context, layers, heads, width, bias):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, bias, "tanh") for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for module in self.modules():  # GPT-2's start; PyTorch's own makes logits of +-100, and then denormals
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        self.register_buffer("mask", torch.triu(torch.ones(context, context, dtype=torch.bool), 1))

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[None]
        for block in self.blocks:
            x = block(x, self.mask)
        return (self.ln_f(x) @ self.wte.weight.t()).flatten(0, 1)


class Residual(nn.Module):
    """A basic block, or a bottleneck with the stride in its 3x3 convolution."""

    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = width * (4 if bottleneck else 1)
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)] if bottleneck else \
                [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in sizes)
        self.shortcut = None if stride == 1 and inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y, last = x, len(self.norms) - 1
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
            y = norm(convolution(y))
            if i < last:
                y = F.relu(y, inplace=True)
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)), inplace=True)


def resnet(blocks, bottleneck, stem, channels, classes):
    layers = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)] if stem == 3 else \
             [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(blocks):
        for i in range(count):
            width = 64 << stage
            layers.append(Residual(inputs, width, 2 if stage > 0 and i == 0 else 1, bottleneck))
            inputs = width * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def cnn(channels, classes):
    """The convnet of two stages of the job file."""
    return nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, classes))


class Dlrm(nn.Module):
    def __init__(self, rows, tables, width, dense, bottom, top):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for _ in range(tables))
        self.bottom = self.mlp([dense, *bottom, width], True)
        pairs = (tables + 1) * tables // 2
        self.top = self.mlp([width + pairs, *top, 1], False)
        i, j = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)

    @staticmethod
    def mlp(widths, last):
        layers = []
        for a, b in zip(widths, widths[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*(layers if last else layers[:-1]))

    def forward(self, dense, ids):
        x = self.bottom(dense)
        rows = [table(ids[:, t:t + 1]) for t, table in enumerate(self.tables)]
        features = torch.stack([x, *rows], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.i, self.j]
        return self.top(torch.cat([x, products], 1)).flatten()


def pixels(batch, channels, side, classes):
    """Images as they are in files, a quarter of the bytes."""
    x = torch.randint(256, (batch, channels, side, side), dtype=torch.uint8).to(memory_format=torch.channels_last)
    return x, torch.randint(classes, (batch,))


def images(batch, channels, side, classes):
    x = torch.rand(batch, channels, side, side).to(memory_format=torch.channels_last)
    return x, torch.randint(classes, (batch,))


# Of a GPU: context, batch, layers, heads, width.
GPTS = {"gpt_124m": (1024, 32, 12, 12, 768), "gpt_350m": (1024, 16, 24, 16, 1024),
        "gpt_1558m": (1024, 4, 48, 25, 1600), "gpt_small": (256, 1, 4, 4, 128)}


def case_of(name):
    """Model, a function that draws a batch, the loss, the optimizer."""
    if name in GPTS:
        context, batch, layers, heads, width = GPTS[name]
        model = Gpt(50257, context, layers, heads, width, True).cuda()
        draw = lambda: (torch.randint(50257, (batch, context)), torch.randint(50257, (batch * context,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        return model, draw, lambda ids, y: F.cross_entropy(model(ids).float(), y), optimizer
    if name == "resnet50_224":
        model = resnet([3, 4, 6, 3], True, 7, 1, 256).cuda().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

        def loss(x, y):  # normalised on the GPU, by the kernel that also converts
            x = ((x.float() / 255 - 0.45) / 0.225).contiguous(memory_format=torch.channels_last)
            return F.cross_entropy(model(x).float(), y)
        return model, lambda: pixels(256, 1, 224, 256), loss, optimizer
    if name in ("gpt2", "char_gpt"):
        vocab, context, batch, model = \
            (50257, 64, 4, Gpt(50257, 64, 12, 12, 768, True)) if name == "gpt2" else \
            (65, 64, 12, Gpt(65, 64, 4, 4, 128, False))
        draw = lambda: (torch.randint(vocab, (batch, context)), torch.randint(vocab, (batch * context,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=name == "char_gpt")
        return model, draw, lambda ids, y: F.cross_entropy(model(ids).float(), y), optimizer
    if name == "dlrm":
        model = Dlrm(100000, 26, 16, 13, [512, 256, 64], [512, 256])
        draw = lambda: (torch.rand(1024, 13), torch.randint(100000, (1024, 26)), torch.rand(1024).round())
        loss = lambda dense, ids, y: F.binary_cross_entropy_with_logits(model(dense, ids).float(), y)
        return model, draw, loss, torch.optim.SGD(model.parameters(), lr=0.1)
    model, batch, side, classes = {
        "resnet50": lambda: (resnet([3, 4, 6, 3], True, 7, 1, 10), 8, 224, 10),
        "resnet18": lambda: (resnet([2, 2, 2, 2], False, 3, 1, 10), 64, 32, 10),
        "cnn": lambda: (cnn(1, 10), 128, 28, 10),
    }[name]()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    return model, lambda: images(batch, 1, side, classes), lambda x, y: F.cross_entropy(model(x).float(), y), optimizer


class Ahead:
    """Batches in turn, each on its way from pinned memory on a stream of its own while the step before runs."""

    def __init__(self, batches):
        self.batches, self.next, self.stream = batches, 0, torch.cuda.Stream()
        self.load()

    def load(self):
        with torch.cuda.stream(self.stream):
            self.batch = [x.cuda(non_blocking=True) for x in self.batches[self.next % len(self.batches)]]
        self.next += 1

    def take(self):
        current = torch.cuda.current_stream()
        current.wait_stream(self.stream)
        batch = self.batch
        for x in batch:
            x.record_stream(current)
        self.load()
        return batch


def fastest_attention(batch, context, heads, width):
    """The backend of scaled_dot_product_attention that is the fastest here, forward and backward, and its name."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q, k, v = torch.randn(batch, context, 3, heads, width // heads, device="cuda", dtype=torch.bfloat16,
                          requires_grad=True).permute(2, 0, 3, 1, 4)
    times = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                for repeat in (3, 20):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    for _ in range(repeat):
                        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                        torch.autograd.grad(y, (q, k, v), y.detach())
                    torch.cuda.synchronize()
                    times[backend] = (time.perf_counter() - begin) / repeat
        except RuntimeError:  # not in this build, or not for this shape
            times.pop(backend, None)
    backend = min(times, key=times.get, default=None)
    return (sdpa_kernel(backend), backend.name) if backend is not None else (contextlib.nullcontext(), "default")


def on_gpu(options):
    every, warm_up = 10, 3
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")  # what autocast leaves in fp32
    torch.backends.cudnn.benchmark = True
    attention, name = contextlib.nullcontext(), "-"
    if options.model in GPTS and options.bf16:
        context, batch, _, heads, width = GPTS[options.model]
        attention, name = fastest_attention(batch, context, heads, width)
    model, draw, loss_of, optimizer = case_of(options.model)
    compiled = torch.compile(loss_of, mode=options.cuda)
    batches = Ahead([[x.pin_memory() for x in draw()] for _ in range(4)])
    times = []
    with attention:
        for _ in range(warm_up + max(1, options.steps // every)):
            begin = time.perf_counter()
            for _ in range(every):
                optimizer.zero_grad(set_to_none=True)
                batch = batches.take()
                torch.compiler.cudagraph_mark_step_begin()
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=options.bf16):
                    loss = compiled(*batch)
                loss.backward()
                optimizer.step()
            loss.item()
            times.append((time.perf_counter() - begin) * 1e3 / every)
            if len(times) <= warm_up:
                torch.cuda.empty_cache()  # what was there for measuring and compiling
    free, total = torch.cuda.mem_get_info()
    kept = times[warm_up:]
    print(json.dumps({"step_ms": statistics.median(kept), "best_ms": min(kept), "torch": torch.__version__,
                      "peak_bytes": total - free, "attention": name}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cuda", metavar="MODE")
    options = parser.parse_args()
    if options.cuda:
        return on_gpu(options)
    torch.set_flush_denormal(True)  # before the other threads exist: they take it over
    torch.set_num_threads(options.threads)
    torch.manual_seed(1337)
    model, draw, loss_of, optimizer = case_of(options.model)
    batches = [draw() for _ in range(4)]
    times = []
    for step in range(options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
            loss = loss_of(*batches[step % len(batches)])
        loss.backward()
        optimizer.step()
        loss.item()
        times.append((time.perf_counter() - begin) * 1e3)
    kept = times[min(3, len(times) - 1):]
    print(json.dumps({"step_ms": statistics.median(kept), "best_ms": min(kept), "torch": torch.__version__,
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
