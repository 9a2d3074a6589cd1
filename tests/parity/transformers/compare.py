"""Runs under a Python that has transformers: CHECKPOINT DUMP ... ; exit 1 when logits differ."""
import sys

import torch
import transformers
from safetensors.torch import load_file

LIMIT = 2e-5  # the norm of the difference by the norm of the logits


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


def check(checkpoint, dump):
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    kind = getattr(transformers, config.architectures[0])
    model, info = kind.from_pretrained(checkpoint, output_loading_info=True)
    # Of keys, what a tied head shares is neither missing nor written.
    wrong = [f"{what}: {sorted(info[what])}" for what in ("missing_keys", "unexpected_keys", "mismatched_keys")
             if info[what]]
    stored = load_file(f"{checkpoint}/model.safetensors")
    moved = [name for name, tensor in dump.items()
             if name.startswith("after/") and not torch.equal(stored[name[6:]], tensor)]
    wrong += [f"the checkpoint's {moved[0]} is not that of the dump"] if moved else []
    with torch.no_grad():
        theirs = logits_of(model.eval(), dump)
    ours = dump["logits"].reshape(theirs.shape)
    gap = ((ours - theirs).norm() / theirs.norm()).item()
    ok = not wrong and gap <= LIMIT
    print(f"{'ok  ' if ok else 'FAIL'} {type(model).__name__}: logits differ by {gap:.2e} (at most {LIMIT:.0e})"
          + "".join("; " + line for line in wrong))
    return ok


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    arguments = iter(sys.argv[1:])
    results = [check(checkpoint, load_file(dump)) for checkpoint, dump in zip(arguments, arguments)]
    sys.exit(0 if all(results) else 1)
