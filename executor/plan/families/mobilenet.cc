#include <algorithm>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kExpansion = 6;
constexpr int64_t kOutputs = 1280;  // channels before the classifier

// Blocks of one shape (Sandler et al. 2018, table 2).
struct Stage {
  int64_t channels, blocks, stride;
};
constexpr Stage kStages[] = {{24, 2, 2}, {32, 3, 2},  {64, 4, 2},
                             {96, 3, 1}, {160, 3, 2}, {320, 1, 1}};

// `channels` times `width`, to the nearest multiple of 8 that takes no more than a tenth away.
int64_t Scaled(int64_t channels, double width) {
  const double wanted = static_cast<double>(channels) * width;
  const int64_t rounded = std::max<int64_t>(8, static_cast<int64_t>(wanted + 4) / 8 * 8);
  return static_cast<double>(rounded) < 0.9 * wanted ? rounded + 8 : rounded;
}

struct Shape {
  int64_t out = 0, kernel = 1, stride = 1, groups = 1;
};

// A convolution without bias, its batch norm and, unless it ends a block, ReLU6.
TensorId AddConvolution(const std::string& name, TensorId x, const Shape& shape, bool activate,
                        TensorId residual, GraphBuilder& builder) {
  x = builder.Convolution(absl::StrCat(name, ".convolution"), x, shape.out,
                          {.kernel = shape.kernel,
                           .stride = shape.stride,
                           .groups = shape.groups,
                           .bias = false,
                           .std = KaimingStd(shape.out * shape.kernel * shape.kernel)});
  x = builder.BatchNorm(absl::StrCat(name, ".normalization"), x, {.residual = residual});
  return activate ? builder.Activate(absl::StrCat(name, ".activation"), x, ActivationKind::kRelu6)
                  : x;
}

// Depthwise over all channels of x, then to `out` of them.
TensorId AddSeparable(const std::string& name, TensorId x, int64_t out, int64_t stride,
                      TensorId residual, GraphBuilder& builder) {
  const int64_t in = builder.tensor(x).dims[3];
  x = AddConvolution(absl::StrCat(name, ".conv_3x3"), x,
                     {.out = in, .kernel = 3, .stride = stride, .groups = in}, true, kNone,
                     builder);
  return AddConvolution(absl::StrCat(name, ".reduce_1x1"), x, {.out = out}, false, residual,
                        builder);
}

TensorId AddBlock(const std::string& name, TensorId x, int64_t out, int64_t stride,
                  GraphBuilder& builder) {
  const int64_t in = builder.tensor(x).dims[3];
  const TensorId residual = stride == 1 && in == out ? x : kNone;
  x = AddConvolution(absl::StrCat(name, ".expand_1x1"), x, {.out = kExpansion * in}, true, kNone,
                     builder);
  return AddSeparable(name, x, out, stride, residual, builder);
}

}  // namespace

absl::StatusOr<Forward> BuildMobilenet(const v1::Mobilenet& mobilenet, const DataFacts& facts,
                                       TensorId images, GraphBuilder& builder) {
  const double width = mobilenet.width();
  const bool cifar = mobilenet.stem() == v1::Resnet::CIFAR;
  Forward forward;
  forward.classes = facts.classes;
  TensorId x = AddConvolution("mobilenet_v2.conv_stem.first_conv", images,
                              {.out = Scaled(32, width), .kernel = 3, .stride = cifar ? 1 : 2},
                              true, kNone, builder);
  x = AddSeparable("mobilenet_v2.conv_stem", x, Scaled(16, width), 1, kNone, builder);
  int block = 0;
  for (const Stage& stage : kStages) {
    for (int64_t i = 0; i < stage.blocks; ++i) {
      const int64_t stride = i > 0 || (cifar && block == 0) ? 1 : stage.stride;
      x = AddBlock(absl::StrCat("mobilenet_v2.layer.", block++), x, Scaled(stage.channels, width),
                   stride, builder);
    }
  }
  x = AddConvolution("mobilenet_v2.conv_1x1", x, {.out = Scaled(kOutputs, std::max(1.0, width))},
                     true, kNone, builder);
  x = builder.MeanPool("mobilenet_v2.pooler", x);
  x = builder.Drop("dropout", x, mobilenet.dropout());
  const int64_t in = builder.tensor(x).dims[1];
  forward.logits =
      builder.Linear("classifier", x, builder.batch(), in, forward.classes, {.std = 0.01});
  return forward;
}

}  // namespace trainyard::plan
