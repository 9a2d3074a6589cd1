"""The peer: nanoGPT's character model in PyTorch, one training step after the other.

Reads the text, trains `steps` steps and prints one JSON object: the median step in milliseconds
(forward, backward, clip, AdamW) without the first fifth, and the threads used. Run it with
OPENBLAS_CORETYPE=SkylakeX where the CPU has AVX-512: OpenBLAS 0.3.21 takes slower code by itself.
"""
import argparse
import json
import math
import statistics
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.mlp_proj = nn.Linear(4 * width, width, bias=False)

    def attention(self, x, mask):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(C // self.heads))
        y = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x, mask):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class CharGpt(nn.Module):
    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.register_buffer("mask", torch.triu(torch.ones(context, context, dtype=torch.bool), 1))

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[None]
        for block in self.blocks:
            x = block(x, self.mask)
        logits = self.ln_f(x) @ self.wte.weight.t()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(1337)
    text = open(options.text, encoding="utf-8").read()
    letters = {c: i for i, c in enumerate(sorted(set(text)))}
    data = np.array([letters[c] for c in text], dtype=np.int64)
    data = data[: int(0.9 * len(data))]
    context, batch = 64, 12
    model = CharGpt(len(letters), context, layers=4, heads=4, width=128)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.99),
                                  foreach=True)
    rng = np.random.default_rng(1337)
    times = []
    for _ in range(options.steps):
        starts = rng.integers(0, len(data) - context - 1, batch)
        ids = torch.from_numpy(np.stack([data[s : s + context] for s in starts]))
        targets = torch.from_numpy(np.stack([data[s + 1 : s + context + 1] for s in starts]))
        begin = time.perf_counter()
        loss = model(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        times.append((time.perf_counter() - begin) * 1e3)
    kept = times[len(times) // 5 :]
    print(json.dumps({"step_ms": statistics.median(kept), "threads": torch.get_num_threads(),
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
