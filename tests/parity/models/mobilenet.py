import torch.nn.functional as F


def forward(params, x, case):
    """transformers: MobileNetV2ForImageClassification without tf_padding; a CIFAR stem."""
    buffers = case["buffers"]

    def layer(name, x, stride=1, activate=True):
        w, norm = params[name + ".convolution.weight"], name + ".normalization."
        x = F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2, groups=x.shape[1] // w.shape[1])
        x = F.batch_norm(x, buffers[norm + "running_mean"], buffers[norm + "running_var"],
                         params[norm + "weight"], params[norm + "bias"], case["training"], 0.1, 1e-5)
        # torch.autocast has no gradient of a relu6 in bf16; in fp32 it is the same.
        return F.relu6(x.float()).to(x.dtype) if activate else x

    def separable(name, x, stride):
        return layer(name + ".reduce_1x1", layer(name + ".conv_3x3", x, stride), activate=False)

    x = layer("mobilenet_v2.conv_stem.first_conv", x.permute(0, 3, 1, 2))
    x = separable("mobilenet_v2.conv_stem", x, 1)
    for i, stride in enumerate([1, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1]):
        block = f"mobilenet_v2.layer.{i}"
        y = separable(block, layer(block + ".expand_1x1", x), stride)
        x = x + y if stride == 1 and x.shape == y.shape else y
    x = layer("mobilenet_v2.conv_1x1", x).mean((2, 3))
    return F.linear(x, params["classifier.weight"], params["classifier.bias"])
