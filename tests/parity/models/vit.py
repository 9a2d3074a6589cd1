import torch
import torch.nn.functional as F


def forward(params, x, case):
    """transformers: ViTForImageClassification."""
    heads = case["heads"]

    def norm(name, x):
        w = params[name + ".weight"]
        return F.layer_norm(x, w.shape, w, params[name + ".bias"], 1e-12)

    def linear(name, x):
        return F.linear(x, params[name + ".weight"], params[name + ".bias"])

    at = "vit.embeddings."
    w = params[at + "patch_embeddings.projection.weight"]
    x = F.conv2d(x.permute(0, 3, 1, 2), w, params[at + "patch_embeddings.projection.bias"], stride=w.shape[-1])
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([params[at + "cls_token"].expand(len(x), -1, -1), x], 1) + params[at + "position_embeddings"]
    for i in range(case["layers"]):
        block = f"vit.encoder.layer.{i}."
        y = norm(block + "layernorm_before", x)
        q, k, v = (linear(block + "attention.attention." + n, y).unflatten(-1, (heads, -1)).transpose(1, 2)
                   for n in ("query", "key", "value"))
        scores = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(block + "attention.output.dense", y)
        y = F.gelu(linear(block + "intermediate.dense", norm(block + "layernorm_after", x)))
        x = x + linear(block + "output.dense", y)
    return linear("classifier", norm("vit.layernorm", x)[:, 0])
