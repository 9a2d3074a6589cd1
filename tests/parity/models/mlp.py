import torch.nn.functional as F


def forward(params, x, case):
    x = x.reshape(x.shape[0], -1)
    layers = sum(1 for name in params if name.endswith(".weight"))
    for i in range(layers):
        x = F.linear(x, params[f"layers.{i}.weight"], params[f"layers.{i}.bias"])
        if i + 1 < layers:
            x = F.gelu(x)
    return x
