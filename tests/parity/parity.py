"""Holds the engine against PyTorch: same weights, same batches, same optimizer.

    parity.py --tool PARITY_DUMP --case CASE (one of CASES below) [--precision BF16|FP16]

Loss of the first step within 1e-5 relative, every gradient within 1e-4 (norm of the difference by norm of
the gradient), losses, weights, moving averages and running statistics after 20 or 50 steps within 1e-3,
logits of an evaluation after them within 1e-4. The case `curve` compares 200 losses of a character GPT.

In BF16 the error of loss and gradients of the first step, against PyTorch in fp32, is at most twice that of
PyTorch under autocast in bf16; in FP16, whose numbers have three bits more and which PyTorch does not compute
on CPUs, at most three quarters (inputs that change sides of a relu weigh as much in both). Vectors of one
kind are held together: of a bias or a norm one input that changes sides decides a few elements. The curve of at most 50
losses stays within 1 % of PyTorch's in fp32 (the area between them by the area below). A case's rate is one at which
PyTorch's own curve in fp32 does so when the weights it begins with are rounded to bf16: dlrm's at five times its rate
moves by 1 to 2 %.

A resnet has a relu for each of a million values: one that rounding pushes across zero moves the gradients
before it by a thousandth, and more in an untrained net of 50 layers. Biases of norms begin at `shift`, where
few values are near zero.
"""
import argparse
import fnmatch
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

# Threads that spin for each other would make this take minutes on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Whoever limits oneDNN means ours: PyTorch has one of its own, which cannot do bf16 without AVX-512, though PyTorch, which
# asks the CPU, takes it for able to.
OURS = dict(os.environ)
os.environ.pop("ONEDNN_MAX_CPU_ISA", None)

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from models import bert, convnet, dlrm, gpt, layers, llama, mlp, mobilenet, resnet, vit
except ImportError as error:
    sys.exit(f"parity needs PyTorch for {sys.executable} ({error}); on Debian: apt-get install python3-torch")

import optimizers as more_optimizers

DTYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "U8": np.uint8}


def load(path):
    """Tensors of a safetensors file by name."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]])
        tensors[name] = torch.from_numpy(flat.reshape(entry["shape"]).copy())
    return tensors


def write_idx(folder, count, side, classes):
    """A small IDX data set of noise whose mean depends on the label."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, classes, count).astype(np.uint8)
    noise = rng.integers(0, 128, (count, side, side))
    images = (noise + labels[:, None, None] * (127 // classes)).astype(np.uint8)
    with open(f"{folder}/images", "wb") as f:
        f.write(struct.pack(">IIII", 0x803, count, side, side) + images.tobytes())
    with open(f"{folder}/labels", "wb") as f:
        f.write(struct.pack(">II", 0x801, count) + labels.tobytes())


def write_text(folder):
    rng = np.random.default_rng(3)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    with open(f"{folder}/text", "w") as f:
        for _ in range(3000):
            f.write(words[rng.integers(0, len(words))] + " \n"[rng.integers(0, 2)])
    with open(f"{folder}/documents", "w") as f:  # shorter and longer than a context
        for _ in range(600):
            f.write(" ".join(rng.choice(words, rng.integers(1, 15))) + "\n\n")


MEAN, STD = 0.3, 0.4
IDX = f"data: {{{{idx: {{{{train_images: {{d}}/images, train_labels: {{d}}/labels, mean: {MEAN}, std: {STD}}}}}}}}}"
TEXT = "data: {{text: {{path: {d}/text}}}}"
DOCUMENTS = "data: {{text: {{path: {d}/documents}}}}"
ADAMW = "optimizer: {{adamw: {{beta2: 0.99, weight_decay: 0.1}}, clip_norm: {clip}}}"
SGD = "optimizer: {{sgd: {{}}, clip_norm: {clip}}}"
LAZY = "optimizer: {{adamw: {{beta2: 0.99, weight_decay: 0, lazy_tables: true}}}}"
CLICKS = "data: {{clicks: {{train_samples: 5000, validation_samples: 10, dense: 5, categorical: 4, categories: 50}}}}"
DLRM = dict(model="model: {{dlrm: {{embedding_width: 8, bottom: [24], top: [32, 16]}}}}", data=CLICKS, forward=dlrm.forward,
            steps=50, batch=64, micro=32, scale=3, binary=True, lazy=False)
MOMENTUM = "optimizer: {{sgd: {{momentum: 0.9, weight_decay: 5.0e-4}}, clip_norm: {clip}}}"
COSINE = "schedule: {{learning_rate: {rate}, min_learning_rate: 1.0e-4, warmup_steps: 5, shape: COSINE}}"

DEFAULTS = {"rate": 1e-3, "label_smoothing": 0.0, "z_loss": 0.0}

CASES = {
    "bert": dict(
        model="model: {{bert: {{layers: 2, heads: 4, width: 64, context: 32}}}}", data=DOCUMENTS,
        forward=bert.forward, layers=2, heads=4, steps=50, batch=16, micro=8, clip=1.0, scale=3),
    "mlp": dict(
        model="model: {{mlp: {{hidden: [48, 32], activation: GELU}}}}", data=IDX, forward=mlp.forward,
        steps=50, batch=32, micro=16, clip=0.5),
    "convnet": dict(
        model="model: {{convnet: {{stages: [{{channels: 8, convolutions: 2}}, {{channels: 12, kernel: 5}}], hidden: [32]}}}}",
        data=IDX, forward=convnet.forward, convolutions=[2, 1], steps=50, batch=16, micro=16, clip=0.5),
    "dlrm": dict(DLRM, optimizer=SGD, clip=0.5, rate=0.1),
    "dlrm_adamw": dict(DLRM, clip=0.5),
    "dlrm_lazy": dict(DLRM, optimizer=LAZY, lazy=True, clip=None),
    "resnet": dict(
        model="model: {{resnet: {{depth: 18, stem: CIFAR}}}}", data=IDX, forward=resnet.forward, depth=18,
        blocks=[2, 2, 2, 2], steps=20, batch=32, micro=16, clip=1.0, optimizer=MOMENTUM, shift=2),
    "resnet_bottleneck": dict(
        model="model: {{resnet: {{depth: 50, stem: IMAGENET, width: 8}}}}", data=IDX, forward=resnet.forward, depth=50,
        blocks=[3, 4, 6, 3], steps=50, batch=16, micro=16, clip=1.0, side=33, optimizer=MOMENTUM, shift=1),
    "mobilenet": dict(
        model="model: {{mobilenet: {{stem: CIFAR, width: 0.25, dropout: 0}}}}", data=IDX,
        forward=mobilenet.forward, steps=20, batch=32, micro=16, clip=1.0, side=16, optimizer=MOMENTUM, shift=2),
    "layers_images": dict(
        model=layers.IMAGES, data=IDX, forward=layers.images, steps=50, batch=32, micro=16, clip=1.0, optimizer=MOMENTUM,
        shift=1),
    "layers_tokens": dict(
        model=layers.TOKENS, data=TEXT, forward=layers.tokens, steps=50, batch=8, micro=4, clip=1.0, scale=3),
    "vit": dict(
        model="model: {{vit: {{layers: 3, heads: 4, width: 64, patch: 4}}}}", data=IDX, forward=vit.forward,
        layers=3, heads=4, steps=50, batch=32, micro=16, clip=1.0, scale=4),
    "gpt": dict(
        model="model: {{gpt: {{layers: 3, heads: 4, width: 64, context: 32}}}}", data=TEXT, forward=gpt.forward,
        layers=3, heads=4, steps=50, batch=8, micro=4, clip=1.0, scale=6),
    "gpt_untied": dict(
        model="model: {{gpt: {{layers: 2, heads: 2, width: 32, context: 16, bias: false, tie_embeddings: false, vocab_size: 48}}}}",
        data=TEXT, forward=gpt.forward, layers=2, heads=2, steps=20, batch=8, micro=8, clip=1.0, scale=6),
    "gpt_loss": dict(
        model="model: {{gpt: {{layers: 2, heads: 2, width: 32, context: 16}}}}", data=TEXT, forward=gpt.forward, layers=2,
        heads=2, steps=20, batch=8, micro=2, clip=1.0, scale=6, ignore=1, label_smoothing=0.1, z_loss=1e-2),
    "llama": dict(
        model="model: {{llama: {{layers: 3, heads: 4, kv_heads: 2, width: 64, context: 32}}}}", data=TEXT,
        forward=llama.forward, layers=3, heads=4, kv_heads=2, steps=50, batch=8, micro=4, clip=1.0, scale=6),
    # Adapters of all linear layers of the blocks; of parts of a product, with norms trained as they are. Where all
    # are adapted a start of `scale` 6 is so steep that bf16's error is by chance half of torch's or twice that.
    "lora_gpt": dict(
        model="model: {{gpt: {{layers: 3, heads: 4, width: 64, context: 32}}}}", data=TEXT, forward=gpt.forward,
        layers=3, heads=4, steps=50, batch=8, micro=4, clip=1.0, scale=3, rate=1e-2,
        fine_tune="fine_tune: {{lora: {{rank: 4, alpha: 8}}}}", lora=2.0, frozen=("*[!AB].weight", "*.bias"), ema=0.95),
    "lora_llama": dict(
        model="model: {{llama: {{layers: 3, heads: 4, kv_heads: 2, width: 64, context: 32}}}}", data=TEXT,
        forward=llama.forward, layers=3, heads=4, kv_heads=2, steps=50, batch=8, micro=4, clip=1.0, scale=6, rate=1e-2,
        fine_tune="fine_tune: {{lora: {{rank: 8, alpha: 12, targets: ['*.q_proj.weight', '*.v_proj.weight', '*.up_proj.weight'], "
                  "also_train: ['*norm.weight']}}}}",
        lora=1.5, frozen=("*_proj.weight", "*embed*", "lm_head*")),
    "llama_curve": dict(
        model="model: {{llama: {{layers: 2, heads: 4, width: 128, context: 64, tie_embeddings: true}}}}",
        data=TEXT, forward=llama.forward, layers=2, heads=4, kv_heads=4, steps=200, batch=12, micro=12, clip=1.0),
    "curve": dict(
        model="model: {{gpt: {{layers: 2, heads: 4, width: 128, context: 64, bias: false}}}}", data=TEXT,
        forward=gpt.forward, layers=2, heads=4, steps=200, batch=12, micro=12, clip=1.0),
}
# A step of one micro-batch, in which bf16's gradients of matrices are bf16, too.
CASES.update({f"{name}_whole": dict(CASES[name], micro=CASES[name]["batch"]) for name in ("gpt", "llama", "lora_gpt")})
CASES.update(more_optimizers.cases(CASES))


def dump(tool, case, folder, text):
    write_idx(folder, 400, case.get("side", 12), 5)
    write_text(folder)
    if text is not None:
        shutil.copy(text, f"{folder}/text")
    ema = ", ema_decay: {ema}, ema_warmup: true" if "ema" in case else ""
    lines = [case["model"], case["data"], case.get("optimizer", ADAMW), case.get("schedule", COSINE),
             "training: {{steps: {steps}, batch_size: {batch}, micro_batch_size: {micro}, "
             "label_smoothing: {label_smoothing}, z_loss: {z_loss}" + ema + "}}",
             "precision: {{compute: {precision}}}"]
    if "fine_tune" in case:
        lines.append(case["fine_tune"])
    with open(f"{folder}/job.yaml", "w") as f:
        f.write("spec:\n")
        for line in lines:
            f.write("  " + line.format(**{**DEFAULTS, **case, "d": folder}) + "\n")
    start = [str(case.get(key, default)) for key, default in (("scale", 1), ("shift", 0), ("ignore", 0))]
    subprocess.run([tool, f"{folder}/job.yaml", f"{folder}/dump", *start], check=True, env=OURS)
    return load(f"{folder}/dump")


class Checks:
    def __init__(self):
        self.failed = False

    def within(self, what, found, limit):
        ok = found <= limit
        self.failed |= not ok
        print(f"{'ok  ' if ok else 'FAIL'} {what}: {found:.2e} (at most {limit:.0e})")

    def worst_within(self, what, found, limit):
        """`found` maps names to distances."""
        if found:
            name = max(found, key=found.get)
            over = sum(not value <= limit for value in found.values())
            self.within(f"{what} {name}, the worst of {len(found)} ({over} over)", found[name], limit)


def distance(a, b):
    return ((a - b).norm() / b.norm().clamp_min(1e-12)).item()


def has_no_gradient(name):
    """A bias of keys, as below; a bias of a norm that only convolutions with norms of their own see, which take
    every shift away. Their true gradient is zero, what is computed is rounding."""
    return name.endswith(".key.bias") or name.endswith(".reduce_1x1.normalization.bias")


def without_key_bias(name, tensor):
    """A bias of the keys shifts all scores of a row alike: its true gradient is zero, what is computed is
    rounding, and Adam blows that up to full steps of random sign. It has no value to compare."""
    if name.endswith(".key.bias"):
        return tensor[:0]
    if not name.endswith("attn.c_attn.bias"):
        return tensor
    query, _, value = tensor.chunk(3)
    return torch.cat([query, value])


def dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient


def inputs_of(ours, i):
    """Of micro-batch i; with ids, where the dump has them; images, which it has as bytes, normalised as IDX says."""
    x = ours[f"input/{i}"]
    if x.dtype == torch.uint8:
        return ((x.double() / 255 - MEAN) / STD).float()
    return (x, ours[f"ids/{i}"]) if f"ids/{i}" in ours else x


def optimizers_of(case, params):
    if "make" in case:
        return case["make"](params, case)
    if case.get("optimizer") == SGD:
        return [torch.optim.SGD(params.values(), lr=1e-3)]
    if case.get("optimizer") == MOMENTUM:
        return [torch.optim.SGD(params.values(), lr=1e-3, momentum=0.9, weight_decay=5e-4)]
    betas = (0.9, 0.99)
    if case.get("optimizer") == LAZY:
        tables = [p for name, p in params.items() if name.startswith("emb_l")]
        rest = [p for name, p in params.items() if not name.startswith("emb_l")]
        return [torch.optim.SparseAdam(tables, lr=1e-3, betas=betas, eps=1e-8),
                torch.optim.AdamW(rest, lr=1e-3, betas=betas, eps=1e-8, weight_decay=0)]
    groups = [{"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, lr=1e-3, betas=betas, eps=1e-8)]


def loss_of(case, logits, target, counting):
    """Of one micro-batch, whose targets are some of the `counting` ones of the step."""
    if case.get("binary"):
        return F.binary_cross_entropy_with_logits(logits.flatten(), target.float(), reduction="sum") / counting
    terms = F.cross_entropy(logits, target.long(), ignore_index=-1, reduction="sum",
                            label_smoothing=case.get("label_smoothing", 0.0))
    if "z_loss" in case:
        terms = terms + case["z_loss"] * logits[target >= 0].logsumexp(-1).pow(2).sum()
    return terms / counting


def targets_of(case, ours, step):
    """Of each micro-batch of a step, and how many of them count."""
    micro_batches = case["batch"] // case["micro"]
    targets = [ours[f"target/{step * micro_batches + m}"].flatten() for m in range(micro_batches)]
    return targets, sum((t >= 0).sum().item() for t in targets)


def first_step(case, ours, autocast):
    """Loss and gradients of the first step by torch, in fp32 or, but for the loss, under autocast."""
    names = [name[7:] for name in ours if name.startswith("before/")]
    params = {name: ours["before/" + name].clone().requires_grad_() for name in names}
    case["buffers"] = {name[7:]: torch.full_like(ours[name], float(name.endswith("running_var")))
                       for name in ours if name.startswith("buffer/")}
    case["training"] = True
    targets, counting = targets_of(case, ours, 0)
    total = 0.0
    for m, target in enumerate(targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = case["forward"](params, inputs_of(ours, m), case)
        loss = loss_of(case, logits.float(), target, counting)
        loss.backward()
        total += loss.item()
    return total, {name: dense(p.grad) for name, p in params.items() if "gradient/" + name in ours}


def compare_errors(case, ours, checks):
    """Our error against torch in fp32 by that of torch under autocast."""
    exact_loss, exact = first_step(case, ours, False)
    theirs_loss, theirs = first_step(case, ours, True)
    most = 2 if case["precision"] == "BF16" else 0.75
    gap = {"ours": abs(ours["loss"][0].item() - exact_loss) / exact_loss, "torch": abs(theirs_loss - exact_loss) / exact_loss}
    print(f"loss {exact_loss:.5f}: error {gap['ours']:.1e}, of torch in bf16 {gap['torch']:.1e}")
    # One number may be right by chance: an error far below what bf16 resolves is none.
    checks.within("error of the loss by torch's", gap["ours"] / max(gap["torch"], 1e-3), most)
    targets, counting = targets_of(case, ours, 0)
    scale = ours["loss_scale"][0].item() * counting / sum(len(t) for t in targets)
    squares = {}  # of our errors, of torch's, of the gradient
    for name, gradient in exact.items():
        if has_no_gradient(name):
            continue
        mine = without_key_bias(name, ours["gradient/" + name] / scale)
        gradient, other = without_key_bias(name, gradient), without_key_bias(name, theirs[name])
        # Errors of a few numbers are right by chance, too: those are taken together.
        key = name if gradient.dim() >= 2 else "*." + ".".join(name.split(".")[-2:])
        key = key if gradient.numel() >= 64 else "tensors of less than 64 elements"
        found = [x.norm().item() ** 2 for x in (mine - gradient, other - gradient, gradient)]
        squares[key] = [a + b for a, b in zip(squares.get(key, [0.0] * 3), found)]
    total = [sum(column) for column in zip(*squares.values())]
    print(f"error of all gradients by torch's: {(total[0] / total[1]) ** 0.5:.3f}")
    ratios = {key: (a / max(b, 1e-8 * size, 1e-24)) ** 0.5 for key, (a, b, size) in squares.items()}
    checks.worst_within("error by torch's, of the gradient of", ratios, most)


def train(case, ours, checks):
    """Makes the same steps with torch; returns its losses and final weights."""
    names = [name[7:] for name in ours if name.startswith("before/")]
    frozen = {name for name in names for pattern in case.get("frozen", ()) if fnmatch.fnmatchcase(name, pattern)}
    params = {name: ours["before/" + name].clone().requires_grad_(name not in frozen) for name in names}
    trained = {name: p for name, p in params.items() if name not in frozen}
    averages = {name: p.detach().clone() for name, p in trained.items()} if "ema" in case else {}
    case["buffers"] = {name[7:]: torch.full_like(ours[name], float(name.endswith("running_var")))
                       for name in ours if name.startswith("buffer/")}
    case["training"] = True
    optimizers = optimizers_of(case, params)
    micro_batches = case["batch"] // case["micro"]
    losses = []
    for step in range(case["steps"]):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        total = 0.0
        targets, counted = targets_of(case, ours, step)
        for m, target in enumerate(targets):
            logits = case["forward"](params, inputs_of(ours, step * micro_batches + m), case)
            loss = loss_of(case, logits, target, counted)
            loss.backward()
            total += loss.item()
        losses.append(total)
        if step == 0 and case["precision"] == "FP32":
            # In our arena a gradient is divided by all targets; the update makes that the counted ones.
            share = counted / sum(len(target) for target in targets)
            checks.worst_within("gradient of", {
                name: distance(ours["gradient/" + name], dense(p.grad) * share)
                for name, p in trained.items() if not has_no_gradient(name)}, 1e-4)
            checks.within("gradients of frozen parameters", sum("gradient/" + name in ours for name in frozen), 0)
        if case["clip"] is None:
            norm = sum(dense(p.grad).norm() ** 2 for p in trained.values()).sqrt().item()
        else:
            norm = torch.nn.utils.clip_grad_norm_(trained.values(), case["clip"]).item()
        if step == 0 and case["precision"] == "FP32":
            checks.within("gradient norm", abs(ours["grad_norm"][0].item() - norm) / norm, 1e-4)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = ours["learning_rate"][step].item() * group.get("scale", 1)
            optimizer.step()
        for name, average in averages.items():
            decay = min(case["ema"], (1 + step) / (10 + step))
            average.lerp_(params[name].detach(), 1 - decay)
    return losses, params, averages


def evaluation_gap(case, ours):
    """Our evaluation of the last micro-batch against torch's, both with our weights and statistics."""
    params = {name[6:]: tensor for name, tensor in ours.items() if name.startswith("after/")}
    params.update({name[4:]: tensor for name, tensor in ours.items() if name.startswith("ema/")})
    case["buffers"] = {name[7:]: tensor for name, tensor in ours.items() if name.startswith("buffer/")}
    case["training"] = False
    last = max(int(name[6:]) for name in ours if name.startswith("input/"))
    with torch.no_grad():
        theirs = case["forward"](params, inputs_of(ours, last), case)
        return distance(ours["logits"].reshape(theirs.shape), theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--case", required=True, choices=CASES)
    parser.add_argument("--text", help="trains on this file in place of made-up words")
    parser.add_argument("--precision", default="FP32", choices=["FP32", "BF16", "FP16"])
    args = parser.parse_args()
    torch.set_num_threads(2)
    case, checks = dict(CASES[args.case], precision=args.precision), Checks()
    if args.precision != "FP32":
        case["steps"] = min(case["steps"], 50)
    with tempfile.TemporaryDirectory() as folder:
        ours = dump(os.path.abspath(args.tool), case, folder, args.text)
    if args.precision != "FP32":
        compare_errors(case, ours, checks)
    losses, params, averages = train(case, ours, checks)
    theirs = torch.tensor(losses, dtype=torch.float64)
    relative = (ours["loss"] - theirs).abs() / theirs
    if args.precision != "FP32":
        print(f"last loss: {ours['loss'][-1]:.4f}, PyTorch in fp32 {theirs[-1]:.4f}")
        print(f"worst of {len(losses)} losses: {relative.max():.1e} apart")
        checks.within("distance of the curves", ((ours["loss"] - theirs).abs().sum() / theirs.sum()).item(), 1e-2)
        sys.exit(1 if checks.failed else 0)
    checks.within("loss of the first step", relative[0].item(), 1e-5)
    if args.case.endswith("curve"):
        last = slice(-20, None)
        gap = abs(ours["loss"][last].mean() - theirs[last].mean()) / theirs[last].mean()
        print(f"loss of the last 20 steps: {ours['loss'][last].mean():.4f}, PyTorch {theirs[last].mean():.4f}")
        checks.within("mean loss of the last 20 steps", gap.item(), 1e-2)
    else:
        checks.within("worst loss", relative.max().item(), 1e-3)
        weights = {}
        for name, p in params.items():
            moved = (p.detach() - ours["before/" + name]).norm()
            if moved > 0:
                after = without_key_bias(name, ours["after/" + name])
                weights[name] = distance(after, without_key_bias(name, p.detach()))
        checks.worst_within("weights of", weights, 1e-3)
        checks.worst_within("average of", {name: distance(without_key_bias(name, ours["ema/" + name]),
                                                          without_key_bias(name, average))
                                           for name, average in averages.items()}, 1e-3)
        checks.within("frozen parameters that moved", sum(
            not torch.equal(ours["after/" + name], ours["before/" + name])
            for name, p in params.items() if not p.requires_grad), 0)
        checks.worst_within("buffer", {name: distance(ours["buffer/" + name], b)
                                       for name, b in case["buffers"].items()}, 1e-3)
    checks.within("logits of an evaluation", evaluation_gap(case, ours), 1e-4)
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
