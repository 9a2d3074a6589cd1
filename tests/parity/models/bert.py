import torch
import torch.nn.functional as F


def forward(params, inputs, case):
    """transformers: BertForMaskedLM with an attention mask of the lengths."""
    ids, lengths = inputs
    ids, time, heads = ids.long(), ids.shape[1], case["heads"]
    seen = (torch.arange(time) < lengths[:, None])[:, None, None, :]

    def norm(name, x):
        w = params[name + ".weight"]
        return F.layer_norm(x.float(), w.shape,  # fp32 under torch.autocast, too
                            w, params[name + ".bias"], 1e-12)

    def linear(name, x):
        return F.linear(x, params[name + ".weight"], params[name + ".bias"])

    at, head = "bert.embeddings.", "cls.predictions."
    words = params[at + "word_embeddings.weight"]
    x = words[ids] + params[at + "token_type_embeddings.weight"][0] + params[at + "position_embeddings.weight"]
    x = norm(at + "LayerNorm", x)
    for i in range(case["layers"]):
        block = f"bert.encoder.layer.{i}."
        q, k, v = (linear(block + "attention.self." + n, x).unflatten(-1, (heads, -1)).transpose(1, 2)
                   for n in ("query", "key", "value"))
        scores = (q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5)).masked_fill(~seen, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = norm(block + "attention.output.LayerNorm", x + linear(block + "attention.output.dense", y))
        y = linear(block + "output.dense", F.gelu(linear(block + "intermediate.dense", x)))
        x = norm(block + "output.LayerNorm", x + y)
    x = norm(head + "transform.LayerNorm", F.gelu(linear(head + "transform.dense", x)))
    return F.linear(x, words, params[head + "bias"]).flatten(0, 1)
