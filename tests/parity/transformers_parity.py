"""Checkpoints of every family that transformers knows, loaded by the real package, and folders that it saved,
trained by us (fine_tune.from): the same logits. Of low-rank adaptation the merged model, and the adapter on its
base by the real peft.

    in_venv transformers.txt transformers_parity.py --worker TRAINYARD_WORKER --tool PARITY_DUMP [--case CASE | --start START]
"""
import argparse
import glob
import json
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

MEAN, STD = 0.3, 0.4
IDX = f"data: {{{{idx: {{{{train_images: {{d}}/images, train_labels: {{d}}/labels, mean: {MEAN}, std: {STD}}}}}}}}}"
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


# A step that moves no weight; running statistics move all the same.
STILL = ["optimizer: {sgd: {}}", "schedule: {learning_rate: 1e-30, shape: CONSTANT}",
         "training: {steps: 1, batch_size: 8}", "evaluation: {at_end: true}"]
GPT2 = dict(n_positions=32, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
ENCODER = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, hidden_dropout_prob=0,
               attention_probs_dropout_prob=0)
LLAMA = dict(hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=32, rms_norm_eps=1e-5)
RESNET = dict(num_channels=1, num_labels=5, layer_type="basic", embedding_size=16, hidden_sizes=[16, 32, 64, 128],
              depths=[2, 2, 2, 2])
# Name: the case whose model it is, transformers' configuration and class, how it is saved, more of fine_tune.
STARTS = {
    "bert": ("bert", "Bert", "ForMaskedLM", ENCODER | {"max_position_embeddings": 32}, {}, ""),
    "bert_pretraining": ("bert", "Bert", "ForPreTraining", ENCODER | {"max_position_embeddings": 32}, {},
                         ", ignore: ['bert.pooler.*', 'cls.seq_relationship.*']"),
    "gpt": ("gpt", "GPT2", "LMHeadModel", GPT2, {}, ""),
    "gpt_base": ("gpt", "GPT2", "LMHeadModel", GPT2, {"base": True}, ""),
    "gpt_bf16": ("gpt", "GPT2", "LMHeadModel", GPT2, {"dtype": torch.bfloat16}, ""),
    "gpt_fp16_shards": ("gpt", "GPT2", "LMHeadModel", GPT2, {"dtype": torch.float16, "shard": "40KB"}, ""),
    "gpt_untied": ("gpt_untied", "GPT2", "LMHeadModel", GPT2 | {"tie_word_embeddings": False}, {}, ""),
    "llama": ("llama", "Llama", "ForCausalLM", LLAMA, {}, ""),
    "llama_shards": ("llama", "Llama", "ForCausalLM", LLAMA, {"shard": "100KB"}, ""),
    "mobilenet": ("mobilenet", "MobileNetV2", "ForImageClassification",
                  dict(num_channels=1, image_size=48, num_labels=5, depth_multiplier=0.5, tf_padding=False,
                       layer_norm_eps=1e-5, classifier_dropout_prob=0), {}, ""),
    "resnet": ("resnet", "ResNet", "ForImageClassification", RESNET, {}, ""),
    "vit": ("vit", "ViT", "ForImageClassification",
            ENCODER | dict(image_size=48, patch_size=8, num_channels=1, num_labels=5), {}, ""),
}


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


def pixel_values(images):
    """Of bytes [batch, height, width, channels], normalised as IDX says."""
    return ((images.double() / 255 - MEAN) / STD).float().permute(0, 3, 1, 2)


def logits_of(model, dump):
    """The model's logits of the dump's last micro-batch, as rows."""
    last = max(int(name.split("/")[1]) for name in dump if name.startswith("input/"))
    x = dump[f"input/{last}"]
    if x.dtype == torch.uint8:
        return model(pixel_values=pixel_values(x)).logits
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


def save(name, folder):
    """The model of a start with random weights that are no special ones, and the folder it is saved to."""
    _, family, head, config, how, _ = STARTS[name]
    torch.manual_seed(3)
    config = dict(config)
    if family in ("GPT2", "Llama", "Bert"):
        with open(f"{folder}/{'documents' if family == 'Bert' else 'text'}") as f:
            config["vocab_size"] = len(set(f.read())) + (family == "Bert")
    model = getattr(transformers, family + head)(getattr(transformers, family + "Config")(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 and family != "ResNet" and family != "MobileNetV2" else 1)
            parameter.add_(0.05 * torch.randn_like(parameter) if parameter.dim() == 1 else 0)
        for key, buffer in model.named_buffers():
            if key.endswith("running_mean"):
                buffer.add_(0.1 * torch.randn_like(buffer))
            if key.endswith("running_var"):
                buffer.mul_(1 + 0.2 * torch.rand_like(buffer))
    model.tie_weights()
    model = model.to(how.get("dtype", torch.float32))
    where = f"{folder}/start-{name}"
    (model.base_model if how.get("base") else model).save_pretrained(where, max_shard_size=how.get("shard", "1GB"))
    return model.float(), where


def held_out_loss(model, folder):
    """The loss of a model of characters on the last tenth of the text, in windows side by side."""
    with open(f"{folder}/text") as f:
        text = f.read()
    ids = {c: i for i, c in enumerate(sorted(set(text)))}
    held_out, total = torch.tensor([ids[c] for c in text[int(0.9 * len(text)):]]), 0.0
    for at in range(0, len(held_out) - 1, 32):
        x, y = held_out[at:at + 32], held_out[at + 1:at + 33]
        total += torch.nn.functional.cross_entropy(model(input_ids=x[None, :len(y)]).logits[0], y, reduction="sum").item()
    return total / (len(held_out) - 1)


def check_start(args, name, folder):
    case, _, _, _, how, more = STARTS[name]
    theirs, where = save(name, folder)
    model, data = CASES[case]
    if case == "mobilenet":
        model = model.replace("width: 0.5", "width: 0.5, dropout: 0")
    lines = [model.format(), data.format(d=folder), f"fine_tune: {{from: {where}{more}}}", *STILL]
    job, out = f"{folder}/start-{name}.yaml", f"{folder}/out-{name}"
    with open(job, "w") as f:
        f.write("spec:\n" + "".join(f"  {line}\n" for line in lines))
    subprocess.run([args.tool, job, f"{out}.dump"], check=True)
    dump, wrong = load_file(f"{out}.dump"), []
    expected = dict(theirs.named_parameters())
    moved = [key for key, tensor in dump.items()
             if key.startswith("before/") and not torch.equal(expected[key[7:]].detach().float(), tensor)]
    wrong += [f"{moved[0]} and {len(moved) - 1} more are not those of the folder"] if moved else []
    with torch.no_grad():
        theirs.train()  # without dropout: moves running statistics as the step did, by our momentum
        for module in theirs.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 0.1
        for i in range(sum(key.startswith("input/") for key in dump)):
            x = dump[f"input/{i}"]
            if x.dtype == torch.uint8:
                theirs(pixel_values=pixel_values(x))
        logits = first_logits(theirs.eval(), dump)
        ours = dump["logits"].reshape(logits.shape)
        gap = ((ours - logits).norm() / logits.norm()).item()
        loss = ""
        if case.startswith(("gpt", "llama")):
            subprocess.run([args.worker, "--spec", job, "--out", out, "--threads", "2"], check=True,
                           stdout=subprocess.DEVNULL)
            with open(glob.glob(f"{out}/**/manifest.json", recursive=True)[0]) as f:
                found = json.load(f)["metrics"]["loss"]
            expected = held_out_loss(theirs, folder)
            loss = f", held-out loss {found:.6f}, theirs {expected:.6f}"
            wrong += ["the losses differ"] if abs(found - expected) > 1e-5 * expected else []
    ok = not wrong and gap <= LIMIT
    print(f"{'ok  ' if ok else 'FAIL'} from {name}: logits differ by {gap:.2e} (at most {LIMIT:.0e}){loss}"
          + "".join("; " + line for line in wrong))
    return ok


def first_logits(model, dump):
    if type(model).__name__ != "BertForPreTraining":
        return logits_of(model, dump)
    mlm = transformers.BertForMaskedLM(model.config)
    mlm.load_state_dict(model.state_dict(), strict=False)
    return logits_of(mlm.eval(), dump)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--start", choices=STARTS)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        write_data(folder)
        cases = [args.case] if args.case else [] if args.start else CASES
        starts = [args.start] if args.start else [] if args.case else STARTS
        results = [check(*train(args, case, folder)) for case in cases]
        results += [check_start(args, start, folder) for start in starts]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
