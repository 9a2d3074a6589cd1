import torch
import torch.nn.functional as F

from . import lora


def forward(params, ids, case):
    ids = ids.long()
    time, heads = ids.shape[1], case["heads"]

    def norm(name, x):
        w = params[name + ".weight"]
        return F.layer_norm(x, w.shape, w, params.get(name + ".bias"), 1e-5)

    def linear(name, x):  # transformers' Conv1D: [in, out]
        y = x @ params[name + ".weight"] + lora.added(params, name, x, case)
        return y + params[name + ".bias"] if name + ".bias" in params else y

    x = params["transformer.wte.weight"][ids] + params["transformer.wpe.weight"][:time]
    mask = torch.full((time, time), float("-inf")).triu(1)
    for i in range(case["layers"]):
        block = f"transformer.h.{i}"
        q, k, v = linear(block + ".attn.c_attn", norm(block + ".ln_1", x)).split(x.shape[-1], -1)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5) + mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(block + ".attn.c_proj", y)
        y = F.gelu(linear(block + ".mlp.c_fc", norm(block + ".ln_2", x)), approximate="tanh")
        x = x + linear(block + ".mlp.c_proj", y)
    x = norm("transformer.ln_f", x)
    head = params.get("lm_head.weight", params["transformer.wte.weight"])
    return (x @ head.T).flatten(0, 1)
