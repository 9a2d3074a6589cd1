import torch.nn.functional as F


def forward(params, x, case):
    buffers = case["buffers"]

    def layer(name, x, stride=1):
        w, norm = params[name + ".convolution.weight"], name + ".normalization."
        x = F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)
        return F.batch_norm(x, buffers[norm + "running_mean"], buffers[norm + "running_var"],
                            params[norm + "weight"], params[norm + "bias"], case["training"], 0.1, 1e-5)

    imagenet = params["resnet.embedder.embedder.convolution.weight"].shape[-1] == 7
    x = F.relu(layer("resnet.embedder.embedder", x.permute(0, 3, 1, 2), 2 if imagenet else 1))
    if imagenet:
        x = F.max_pool2d(x, 3, 2, 1)
    for stage, blocks in enumerate(case["blocks"]):
        for i in range(blocks):
            block = f"resnet.encoder.stages.{stage}.layers.{i}."
            strides = {18: [1, 1], 50: [1, 1, 1]}[case["depth"]]
            stride = 2 if stage > 0 and i == 0 else 1
            strides[case["depth"] // 50] = stride
            shortcut = block + "shortcut"
            y, x = x, layer(shortcut, x, stride) if shortcut + ".convolution.weight" in params else x
            for j, s in enumerate(strides):
                y = layer(f"{block}layer.{j}", y, s)
                y = F.relu(y if j + 1 < len(strides) else y + x)
            x = y
    return F.linear(x.mean((2, 3)), params["classifier.1.weight"], params["classifier.1.bias"])
