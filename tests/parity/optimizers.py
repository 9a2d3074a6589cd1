"""Optimizers that torch 1.13 does not have, after their authors' code, and jobs that use them.

Lamb   apex.optimizers.FusedLAMB (You et al. 2019) with adam_w_mode, bias correction, grad averaging and
       use_nvlamb=False; clipping is the caller's.
Muon   KellerJordan/Muon's muon.py, in fp32 where it has bf16, and torch.optim.Muon's `match_rms_adamw`.
"""
import math

import torch


class Lamb(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas, eps=1e-6):
        super().__init__(groups, dict(lr=lr, betas=betas, eps=eps, weight_decay=0.0))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                m, v = state["m"], state["v"]
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                unbiased = (m / (1 - beta1 ** state["step"]),
                            v / (1 - beta2 ** state["step"]))
                update = unbiased[0] / (unbiased[1].sqrt() + group["eps"]) + group["weight_decay"] * p
                ratio = 1.0
                if group["weight_decay"] != 0:
                    w_norm, u_norm = p.norm(), update.norm()
                    if w_norm > 0 and u_norm > 0:
                        ratio = (w_norm / u_norm).item()
                p.sub_(update, alpha=group["lr"] * ratio)


def zeropower_via_newtonschulz5(x, steps):
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """`input_first`: its matrices are [in, out], as transformers' Conv1D has them; Jordan's are [out, in]."""
    def __init__(self, groups, lr, momentum=0.95, weight_decay=0.0, nesterov=True, steps=5, match_rms_adamw=False,
                 input_first=False):
        super().__init__(groups, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov,
                                      steps=steps, match_rms_adamw=match_rms_adamw, input_first=input_first))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
                update = update.mT if group["input_first"] else update.reshape(len(update), -1)
                update = zeropower_via_newtonschulz5(update, group["steps"])
                rows, cols = update.shape
                if group["match_rms_adamw"]:
                    scale = 0.2 * math.sqrt(max(rows, cols))
                else:
                    scale = max(1, rows / cols) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = update.mT if group["input_first"] else update.reshape(p.shape)
                p.sub_(update, alpha=group["lr"] * scale)


def matrices_and_rest(params):
    """Groups of weight decay 0.1 and 0, as AdamW and LAMB take them."""
    return [{"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}]


def nesterov(params, case):
    return [torch.optim.SGD(params.values(), lr=1e-3, momentum=0.9, weight_decay=5e-4, nesterov=True)]


def lamb(params, case):
    return [Lamb(matrices_and_rest(params), lr=1e-3, betas=(0.9, 0.99))]


def muon(params, case):
    """Hidden matrices by Muon; embeddings, head, biases and norms by AdamW at case["rest"] of its rate."""
    hidden = {name: p for name, p in params.items() if p.dim() >= 2 and case["hidden"](name)}
    rest = matrices_and_rest({name: p for name, p in params.items() if name not in hidden})
    for group in rest:
        group["scale"] = case["rest"]
    return [Muon(hidden.values(), lr=1e-3, weight_decay=0.05, match_rms_adamw=case["rest"] == 1,
                 input_first=case.get("input_first", False)),
            torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.99), eps=1e-8)]


def grouped(params, case):
    """The groups of the case of this name: the first that matches decides."""
    groups = {}
    for name, p in params.items():
        if not p.requires_grad:
            continue
        decay, scale = 0.1 if p.dim() >= 2 else 0.0, 1
        if name.endswith(".bias"):
            decay = 0.05
        elif ".h.1." in name:
            scale = 0.5
        groups.setdefault((decay, scale), []).append(p)
    return [torch.optim.AdamW([{"params": group, "weight_decay": decay, "scale": scale}
                               for (decay, scale), group in groups.items()],
                              lr=1e-3, betas=(0.9, 0.99), eps=1e-8)]


MUON = ("optimizer: {{muon: {{weight_decay: 0.05, adamw: {{beta2: 0.99, weight_decay: 0.1}}, %s}}, clip_norm: {clip}}}")
GROUPS = ("optimizer: {{adamw: {{beta2: 0.99, weight_decay: 0.1}}, clip_norm: {clip}, groups: ["
          "{{pattern: '*.wpe.*', frozen: true}}, {{pattern: '*.h.0.*', frozen: true}}, "
          "{{pattern: '*.bias', weight_decay: 0.05}}, {{pattern: '*.h.1.*', learning_rate_scale: 0.5}}]}}")
STABLE = "schedule: {{learning_rate: {rate}, warmup_steps: 5, shape: WARMUP_STABLE_DECAY, decay_start: 30, decay: ONE_MINUS_SQRT}}"
STEPPED = "schedule: {{learning_rate: {rate}, shape: STEP, milestones: [20, 40], gamma: 0.3}}"


def in_blocks(name):
    return ".h." in name or ".layers." in name


def cases(families):
    """50 steps of each optimizer on models of `families`, which maps names to what all their cases share."""
    gpt, untied, llama, convnet = (dict(families[name], steps=50) for name in ("gpt", "gpt_untied", "llama", "convnet"))
    return {
        "nesterov": dict(convnet, make=nesterov, rate=0.05, schedule=STEPPED,
                         optimizer="optimizer: {{sgd: {{momentum: 0.9, weight_decay: 5.0e-4, nesterov: true}}, clip_norm: {clip}}}"),
        "lamb": dict(llama, make=lamb, rate=5e-3,
                     optimizer="optimizer: {{lamb: {{beta2: 0.99, weight_decay: 0.1}}, clip_norm: {clip}}}"),
        "muon": dict(untied, make=muon, rate=0.02, rest=0.05, hidden=in_blocks, input_first=True, schedule=STABLE,
                     optimizer=MUON % "adamw_learning_rate: 1.0e-3"),
        "muon_llama": dict(llama, make=muon, rate=2e-3, rest=1, hidden=in_blocks,
                           optimizer=MUON % "scale: MATCH_RMS_ADAMW"),
        "muon_convnet": dict(convnet, make=muon, rate=0.02, rest=0.05, hidden=lambda name: name != "layers.1.weight",
                             optimizer=MUON % "adamw_learning_rate: 1.0e-3"),
        "groups": dict(gpt, make=grouped, optimizer=GROUPS, schedule=STABLE, frozen=("*.wpe.*", "*.h.0.*"), ema=0.95),
    }
