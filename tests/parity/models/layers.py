"""Two lists of layers, and the same in PyTorch."""
import torch
import torch.nn.functional as F

from models.llama import rotate

IMAGES = ("model: {{layers: {{layers: ["
          "{{name: stem, convolution: {{out: 8}}}}, {{activation: RELU}}, "
          "{{name: branch, block: {{repeat: 2, layers: ["
          "{{name: conv, convolution: {{out: 8, groups: 4, bias: false}}}}, {{name: norm, batch_norm: {{}}}}, "
          "{{name: sum, add: {{}}, inputs: [norm, input]}}, {{activation: GELU}}]}}}}, "
          "{{name: pool, max_pool: {{}}}}, {{name: point, convolution: {{out: 6, kernel: 1}}}}, "
          "{{name: both, concat: {{}}, inputs: [point, pool]}}, {{flatten: {{}}}}, {{name: head, linear: {{}}}}]}}}}")

TOKENS = ("model: {{layers: {{context: 16, layers: ["
          "{{name: wte, embedding: {{width: 32, init_std: 0.02}}}}, {{name: wpe, positions: {{}}}}, "
          "{{name: h, block: {{repeat: 2, layers: ["
          "{{name: norm, rms_norm: {{}}}}, {{name: qkv, linear: {{out: 64, bias: false}}}}, "
          "{{name: attn, attention: {{heads: 4, kv_heads: 2, rope_theta: 100}}}}, "
          "{{name: sum, add: {{}}, inputs: [attn, input]}}, {{name: up, linear: {{out: 48}}}}, {{name: act, swiglu: {{}}}}, "
          "{{name: down, linear: {{out: 32}}}}, {{name: out, add: {{}}, inputs: [down, sum]}}]}}}}, "
          "{{name: ln, layer_norm: {{}}}}, {{name: head, linear: {{tied: wte}}}}]}}}}")


def images(params, x, case):
    buffers = case["buffers"]
    x = F.relu(F.conv2d(x.permute(0, 3, 1, 2), params["stem.weight"], params["stem.bias"], padding=1))
    for i in range(2):
        norm = f"branch.{i}.norm."
        y = F.conv2d(x, params[f"branch.{i}.conv.weight"], padding=1, groups=4)
        y = F.batch_norm(y, buffers[norm + "running_mean"], buffers[norm + "running_var"], params[norm + "weight"],
                         params[norm + "bias"], case["training"], 0.1, 1e-5)
        x = F.gelu(y + x)
    x = F.max_pool2d(x, 2)
    x = torch.cat([F.conv2d(x, params["point.weight"], params["point.bias"]), x], 1)
    return F.linear(x.flatten(1), params["head.weight"], params["head.bias"])


def tokens(params, ids, case):
    def linear(name, x):
        return F.linear(x, params[name + ".weight"], params.get(name + ".bias"))

    time = ids.shape[1]
    mask = torch.full((time, time), float("-inf")).triu(1)
    x = params["wte.weight"][ids.long()] + params["wpe.weight"]
    for i in range(2):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * params[f"h.{i}.norm.weight"]
        q, k, v = (t.unflatten(-1, (-1, 8)).transpose(1, 2) for t in linear(f"h.{i}.qkv", y).split([32, 16, 16], -1))
        q, k, v = rotate(q, 100.0), rotate(k, 100.0).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = q @ k.transpose(-1, -2) / 8 ** 0.5 + mask
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        gate, up = linear(f"h.{i}.up", x).chunk(2, -1)
        x = x + linear(f"h.{i}.down", F.silu(gate) * up)
    x = F.layer_norm(x, (32,), params["ln.weight"], params["ln.bias"], 1e-5)
    return (x @ params["wte.weight"].T).flatten(0, 1)
