"""Checkpoints of every family that transformers knows, loaded by the real package: the same logits. Of low-rank
adaptation the merged model, and the adapter on its base by the real peft.

    in_venv transformers.txt transformers_parity.py --worker TRAINYARD_WORKER --tool PARITY_DUMP [--case CASE]
"""
import argparse
import glob
import os
import random
import struct
import subprocess
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file

LIMIT = 2e-5  # the norm of the difference by the norm of the logits

IDX = "data: {{idx: {{train_images: {d}/images, train_labels: {d}/labels, mean: 0.3, std: 0.4}}}}"
TEXT = "data: {{text: {{path: {d}/text}}}}"
DOCUMENTS = "data: {{text: {{path: {d}/documents}}}}"
CASES = {
    "bert": ("model: {{bert: {{layers: 2, heads: 4, width: 64, context: 32}}}}", DOCUMENTS),
    "gpt": ("model: {{gpt: {{layers: 2, heads: 4, width: 64, context: 32}}}}", TEXT),
    "gpt_untied": ("model: {{gpt: {{layers: 2, heads: 4, width: 64, context: 32, tie_embeddings: false}}}}", TEXT),
    "llama": ("model: {{llama: {{layers: 2, heads: 4, kv_heads: 2, width: 64, context: 32}}}}", TEXT),
    "lora_gpt": ("model: {{gpt: {{layers: 2, heads: 4, width: 64, context: 32}}}}", TEXT,
                 "fine_tune: {lora: {rank: 4, alpha: 10, also_train: [transformer.wte.weight, '*.ln_f.*']}}"),
    "lora_llama": ("model: {{llama: {{layers: 2, heads: 4, kv_heads: 2, width: 64, context: 32}}}}", TEXT,
                   "fine_tune: {lora: {rank: 4, alpha: 6, targets: ['*.q_proj.weight', '*.v_proj.weight'], dropout: 0.1}}"),
    "lora_bert": ("model: {{bert: {{layers: 2, heads: 4, width: 64, context: 32}}}}", DOCUMENTS,
                  "fine_tune: {lora: {rank: 4, also_train: [bert.embeddings.word_embeddings.weight]}}"),
    "lora_vit": ("model: {{vit: {{layers: 2, heads: 4, width: 64, patch: 8}}}}", IDX,
                 "fine_tune: {lora: {rank: 4, also_train: ['classifier.*']}}"),
    "mobilenet": ("model: {{mobilenet: {{stem: IMAGENET, width: 0.5}}}}", IDX),
    "resnet": ("model: {{resnet: {{depth: 18, stem: IMAGENET, width: 16}}}}", IDX),
    "resnet_bottleneck": ("model: {{resnet: {{depth: 50, stem: IMAGENET, width: 8}}}}", IDX),
    "vit": ("model: {{vit: {{layers: 2, heads: 4, width: 64, patch: 8}}}}", IDX),
}
REST = ["optimizer: {adamw: {}}", "schedule: {learning_rate: 0.01}",
        "training: {steps: 5, batch_size: 8, log_every: 5}", "evaluation: {at_end: false}"]


def write_data(folder):
    draw, count, side = random.Random(7), 64, 48
    with open(f"{folder}/images", "wb") as f:
        f.write(struct.pack(">IIII", 0x803, count, side, side) + draw.randbytes(count * side * side))
    with open(f"{folder}/labels", "wb") as f:
        f.write(struct.pack(">II", 0x801, count) + bytes(i % 5 for i in range(count)))
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    with open(f"{folder}/text", "w") as f:
        f.write(" ".join(draw.choices(words, k=1000)))
    with open(f"{folder}/documents", "w") as f:
        for _ in range(200):
            f.write(" ".join(draw.choices(words, k=draw.randint(1, 12))) + "\n\n")


def train(args, case, folder):
    """Trains by the worker, whose checkpoint is looked at, and by the tool, which dumps an evaluation."""
    model, data, *more = CASES[case]
    with open(f"{folder}/{case}.yaml", "w") as f:
        f.write("spec:\n" + "".join(f"  {line}\n" for line in [model.format(), data.format(d=folder), *more, *REST]))
    job, out = f"{folder}/{case}.yaml", f"{folder}/{case}"
    subprocess.run([args.worker, "--spec", job, "--out", out, "--threads", "2"], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([args.tool, job, f"{folder}/{case}.dump"], check=True)
    checkpoint = sorted(glob.glob(f"{out}/**/model.safetensors", recursive=True))[-1]
    return os.path.dirname(checkpoint), load_file(f"{folder}/{case}.dump")


def logits_of(model, dump):
    """The model's logits of the dump's last micro-batch, as rows."""
    last = max(int(name.split("/")[1]) for name in dump if name.startswith("input/"))
    x = dump[f"input/{last}"]
    if x.dtype == torch.float32:
        return model(pixel_values=x.permute(0, 3, 1, 2)).logits
    mask = {}
    if f"ids/{last}" in dump:  # lengths
        mask["attention_mask"] = (torch.arange(x.shape[1]) < dump[f"ids/{last}"][:, None]).long()
    return model(input_ids=x.long(), **mask).logits.flatten(0, 1)


def gap_of(model, dump):
    """Between the model's logits and ours."""
    with torch.no_grad():
        theirs = logits_of(model.eval(), dump)
    return ((dump["logits"].reshape(theirs.shape) - theirs).norm() / theirs.norm()).item()


def by_peft(kind, checkpoint):
    """What was adapted as it was, and the adapter on it."""
    base = kind.from_pretrained(checkpoint)
    before = load_file(f"{checkpoint}/trainer_state/base.safetensors")
    base.load_state_dict(before, strict=False)
    model = peft.PeftModel.from_pretrained(base, f"{checkpoint}/adapter")
    adapter = load_file(f"{checkpoint}/adapter/adapter_model.safetensors")
    state = peft.get_peft_model_state_dict(model)
    wrong = [f"keys that peft would not write: {sorted(set(adapter) ^ set(state))}"] if set(adapter) != set(state) else []
    wrong += [f"peft has other values of {name}" for name in adapter if name in state and not torch.equal(adapter[name], state[name])]
    return model, wrong


def report(what, gap, wrong):
    ok = not wrong and gap <= LIMIT
    print(f"{'ok  ' if ok else 'FAIL'} {what}: logits differ by {gap:.2e} (at most {LIMIT:.0e})"
          + "".join("; " + line for line in wrong))
    return ok


def check(checkpoint, dump):
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    kind = getattr(transformers, config.architectures[0])
    model, info = kind.from_pretrained(checkpoint, output_loading_info=True)
    # Of keys, what a tied head shares is neither missing nor written.
    wrong = [f"{what}: {sorted(info[what])}" for what in ("missing_keys", "unexpected_keys", "mismatched_keys")
             if info[what]]
    stored = load_file(f"{checkpoint}/model.safetensors")
    adapted = os.path.exists(f"{checkpoint}/adapter")
    if adapted:  # the dump has everything as it was trained
        stored.update(load_file(f"{checkpoint}/trainer_state/base.safetensors"))
        stored.update({name.removeprefix("base_model.model."): tensor
                       for name, tensor in load_file(f"{checkpoint}/adapter/adapter_model.safetensors").items()})
    moved = [name for name, tensor in dump.items()
             if name.startswith("after/") and not torch.equal(stored[name[6:]], tensor)]
    wrong += [f"the checkpoint's {moved[0]} is not that of the dump"] if moved else []
    ok = report(type(model).__name__, gap_of(model, dump), wrong)
    if adapted:
        model, wrong = by_peft(kind, checkpoint)
        ok &= report(f"its adapter by peft {peft.__version__}", gap_of(model, dump), wrong)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--case", choices=CASES)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        write_data(folder)
        results = [check(*train(args, case, folder)) for case in ([args.case] if args.case else CASES)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
