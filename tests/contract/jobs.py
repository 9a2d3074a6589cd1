"""Small jobs of every family, on data that is drawn."""
import json
import random
import re
import struct
import subprocess

IDX = "data: {idx: {train_images: %s/images, train_labels: %s/labels}}"
TOKENS = "data: {tokens: {train: [%s/ids], validation: [%s/ids], vocab_size: 97}}"
CLICKS = "data: {clicks: {train_samples: 4000, validation_samples: 100, categories: 500}}"
FAMILIES = {
    "mlp": ("model: {mlp: {hidden: [33, 20], activation: GELU_TANH, dropout: 0.1}}", IDX),
    "convnet": ("model: {convnet: {stages: [{channels: 8}, {channels: 16, kernel: 5}], hidden: [32], dropout: 0.1}}", IDX),
    "gpt": ("model: {gpt: {layers: 2, heads: 2, width: 32, context: 16, dropout: 0.1}}", TOKENS),
    "resnet": ("model: {resnet: {depth: 18, stem: CIFAR, width: 8}}", IDX),
    "llama": ("model: {llama: {layers: 2, heads: 4, kv_heads: 2, width: 32, context: 16}}", TOKENS),
    "bert": ("model: {bert: {layers: 2, heads: 2, width: 32, context: 16, dropout: 0.1}}", TOKENS),
    "dlrm": ("model: {dlrm: {embedding_width: 8, bottom: [16], top: [16]}}", CLICKS),
    "layers": ("model: {layers: {layers: [{name: c, convolution: {out: 8, groups: 1}}, {name: n, batch_norm: {}}, "
               "{activation: RELU}, {max_pool: {}}, {mean_pool: {}}, {name: head, linear: {}}]}}", IDX),
    "vit": ("model: {vit: {layers: 2, heads: 2, width: 32, patch: 7, dropout: 0.1}}", IDX),
    "mobilenet": ("model: {mobilenet: {stem: CIFAR, width: 0.25}}", IDX),
}
OTHERS = {  # that some tests train, too
    "deep gpt": ("model: {gpt: {layers: 6, heads: 2, width: 32, context: 16, dropout: 0.1}}", TOKENS),
}
PRECISIONS = ("FP32", "BF16", "FP16")
OPTIMIZERS = {
    "sgd": "optimizer: {sgd: {}}",
    "momentum": "optimizer: {sgd: {momentum: 0.9, nesterov: true, weight_decay: 0.001}, clip_norm: 1.0}",
    "adamw": "optimizer: {adamw: {}}",
    "lamb": "optimizer: {lamb: {}, clip_norm: 1.0}",
    "muon": "optimizer: {muon: {}}",
    "adamw_lazy": "optimizer: {adamw: {lazy_tables: true}}",
}


def write_data(folder):
    draw = random.Random(1)
    (folder / "ids").write_bytes(struct.pack("<4000H", *(draw.randrange(97) for _ in range(4000))))
    (folder / "images").write_bytes(struct.pack(">IIII", 0x803, 64, 28, 28) + draw.randbytes(64 * 28 * 28))
    (folder / "labels").write_bytes(struct.pack(">II", 0x801, 64) + bytes(i % 10 for i in range(64)))


def job_of(folder, family, precision, optimizer, *lines):
    model, data = {**FAMILIES, **OTHERS}[family]
    lines = [model, data.replace("%s", str(folder)), "schedule: {learning_rate: 0.01}", OPTIMIZERS[optimizer],
             f"precision: {{compute: {precision}}}", *lines]
    return "spec:\n" + "".join(f"  {line}\n" for line in lines)


def losses_in(text):
    """Of evaluations, and of the first and the last step: the worker prints others when some time has passed."""
    lines = re.findall(r"^step (\d+)/(\d+)  (validation)?\s*(loss \S+)", text, re.MULTILINE)
    return [loss for step, last, validation, loss in lines if validation or step in ("1", last)]


def train(worker, job, out, *options):
    """What went wrong, if anything, and what the worker planned (parameters, bytes), the losses, the steps made, and the
    digest of the weights."""
    out.mkdir(exist_ok=True)
    done = subprocess.run([worker, "--spec", job, "--out", out, *map(str, options)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    manifests = sorted(out.rglob("manifest.json"))
    if done.returncode != 0 or not manifests:
        return f"exit code {done.returncode}: {done.stdout[-300:]}", None
    manifest = json.loads(manifests[-1].read_text())
    return "", (done.stdout.splitlines()[0], losses_in(done.stdout), manifest["step"],
                manifest["weights_sha256"])
