import torch
import torch.nn.functional as F


def forward(params, inputs, case):
    """facebookresearch/dlrm: DLRM_Net.sequential_forward, but for the last sigmoid."""
    dense, ids = inputs

    def mlp(name, x, last):
        layers = sorted(int(key.split(".")[1]) for key in params if key.startswith(name) and key.endswith("weight"))
        for i in layers:
            x = F.linear(x, params[f"{name}.{i}.weight"], params[f"{name}.{i}.bias"])
            if last or i != layers[-1]:
                x = F.relu(x)
        return x

    x = mlp("bot_l", dense, True)
    rows = [F.embedding_bag(ids[:, t:t + 1].long(), params[f"emb_l.{t}.weight"], mode="sum", sparse=case["lazy"])
            for t in range(ids.shape[1])]
    features = torch.stack([x] + rows, 1)
    products = torch.bmm(features, features.transpose(1, 2))
    i, j = torch.tril_indices(features.shape[1], features.shape[1], -1)
    return mlp("top_l", torch.cat([x, products[:, i, j]], 1), False)
