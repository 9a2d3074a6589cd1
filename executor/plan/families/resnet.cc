#include <cmath>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "executor/plan/spec/resnet_layout.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kBottleneckExpansion =
    4;  // what the last convolution of a bottleneck does to the channels

// A convolution without bias and the batch norm that makes one unnecessary. Weights are drawn by
// fan-out, which keeps the variance of gradients (He et al. 2015).
TensorId AddConvolution(const std::string& name, TensorId x, int64_t out, int64_t kernel,
                        int64_t stride, const GraphBuilder::BatchNormOptions& norm,
                        GraphBuilder& builder) {
  x = builder.Convolution(absl::StrCat(name, ".convolution"), x, out,
                          {.kernel = kernel,
                           .stride = stride,
                           .bias = false,
                           .std = KaimingStd(out * kernel * kernel)});
  return builder.BatchNorm(absl::StrCat(name, ".normalization"), x, norm);
}

// relu(branch(x) + x), x through a 1x1 convolution where the shapes differ. The stride is that of
// the 3x3 convolution (ResNet v1.5).
TensorId AddBlock(const std::string& name, TensorId x, int64_t out, int64_t stride, bool bottleneck,
                  GraphBuilder& builder) {
  TensorId residual = x;
  if (builder.tensor(x).dims[3] != out || stride != 1) {
    residual = AddConvolution(absl::StrCat(name, ".shortcut"), x, out, 1, stride, {}, builder);
  }
  const auto layer = [&](int i) { return absl::StrCat(name, ".layer.", i); };
  const GraphBuilder::BatchNormOptions inner = {.relu = true};
  const GraphBuilder::BatchNormOptions last = {.residual = residual, .relu = true};
  if (!bottleneck) {
    x = AddConvolution(layer(0), x, out, 3, stride, inner, builder);
    return AddConvolution(layer(1), x, out, 3, 1, last, builder);
  }
  x = AddConvolution(layer(0), x, out / kBottleneckExpansion, 1, 1, inner, builder);
  x = AddConvolution(layer(1), x, out / kBottleneckExpansion, 3, stride, inner, builder);
  return AddConvolution(layer(2), x, out, 1, 1, last, builder);
}

}  // namespace

absl::StatusOr<Forward> BuildResnet(const v1::Resnet& resnet, const DataFacts& facts,
                                    TensorId images, GraphBuilder& builder) {
  const ResnetLayout layout = *LayoutOfResnet(resnet.depth());
  Forward forward;
  forward.classes = facts.classes;
  const bool cifar = resnet.stem() == v1::Resnet::CIFAR;
  TensorId x = AddConvolution("resnet.embedder.embedder", images, resnet.width(), cifar ? 3 : 7,
                              cifar ? 1 : 2, {.relu = true}, builder);
  if (!cifar) x = builder.MaxPool("resnet.embedder.pooler", x, 3, 2, 1);
  int64_t channels = resnet.width() * (layout.bottleneck ? kBottleneckExpansion : 1);
  for (int s = 0; s < 4; ++s, channels *= 2) {
    for (int i = 0; i < layout.blocks[s]; ++i) {
      x = AddBlock(absl::StrCat("resnet.encoder.stages.", s, ".layers.", i), x, channels,
                   s > 0 && i == 0 ? 2 : 1, layout.bottleneck, builder);
    }
  }
  x = builder.MeanPool("resnet.pooler", x);
  const int64_t in = builder.tensor(x).dims[1];
  // The deviation of torch.nn.Linear's uniform(-1, 1) / sqrt(in).
  forward.logits = builder.Linear("classifier.1", x, builder.batch(), in, forward.classes,
                                  {.std = LecunStd(3 * in)});
  return forward;
}

}  // namespace trainyard::plan
