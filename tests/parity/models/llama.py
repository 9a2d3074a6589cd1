import torch
import torch.nn.functional as F

from . import lora


def rotate(t, theta=10000.0):
    """Rotary positions (Su et al. 2021) of [..., time, features], halves paired as in transformers."""
    half = t.shape[-1] // 2
    angles = torch.arange(t.shape[-2])[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().float(), angles.sin().float()
    low, high = t[..., :half], t[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def forward(params, ids, case):
    ids = ids.long()
    time, heads, kv_heads = ids.shape[1], case["heads"], case["kv_heads"]

    def norm(name, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * params[name + ".weight"]

    def linear(name, x):
        return x @ params[name + ".weight"].T + lora.added(params, name, x, case)

    x = params["model.embed_tokens.weight"][ids]
    mask = torch.full((time, time), float("-inf")).triu(1)
    for i in range(case["layers"]):
        block = f"model.layers.{i}"
        y = norm(block + ".input_layernorm", x)
        q = linear(block + ".self_attn.q_proj", y).unflatten(-1, (heads, -1)).transpose(1, 2)
        k, v = (linear(block + f".self_attn.{n}_proj", y).unflatten(-1, (kv_heads, -1)).transpose(1, 2)
                .repeat_interleave(heads // kv_heads, 1) for n in "kv")
        q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5) + mask
        x = x + linear(block + ".self_attn.o_proj", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = norm(block + ".post_attention_layernorm", x)
        gated = F.silu(linear(block + ".mlp.gate_proj", y)) * linear(block + ".mlp.up_proj", y)
        x = x + linear(block + ".mlp.down_proj", gated)
    x = norm("model.norm", x)
    head = params.get("lm_head.weight", params["model.embed_tokens.weight"])
    return (x @ head.T).flatten(0, 1)
