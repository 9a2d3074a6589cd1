import torch.nn.functional as F


def forward(params, x, case):
    x = x.permute(0, 3, 1, 2)
    for stage, convolutions in enumerate(case["convolutions"]):
        for i in range(convolutions):
            w = params[f"stages.{stage}.{i}.weight"]
            x = F.relu(F.conv2d(x, w, params[f"stages.{stage}.{i}.bias"], padding=w.shape[-1] // 2))
        x = F.max_pool2d(x, 2)
    x = x.flatten(1)
    layers = sum(1 for name in params if name.startswith("layers.") and name.endswith(".weight"))
    for i in range(layers):
        x = F.linear(x, params[f"layers.{i}.weight"], params[f"layers.{i}.bias"])
        if i + 1 < layers:
            x = F.relu(x)
    return x
