#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// The convolutions and poolings; `x` becomes [batch, height, width, channels] of the last stage.
absl::Status AddStages(const v1::Convnet& convnet, TensorId& x, GraphBuilder& builder) {
  for (int s = 0; s < convnet.stages_size(); ++s) {
    const v1::Convnet::Stage& stage = convnet.stages(s);
    const std::string prefix = absl::StrCat("stages.", s);
    for (int i = 0; i < stage.convolutions(); ++i) {
      const std::string name = absl::StrCat(prefix, ".", i);
      const int64_t fan_in = builder.tensor(x).dims[3] * stage.kernel() * stage.kernel();
      x = builder.Convolution(name, x, stage.channels(),
                              {.kernel = stage.kernel(), .std = KaimingStd(fan_in)});
      x = builder.Activate(absl::StrCat(name, ".activation"), x, KindOf(convnet.activation()));
    }
    if (stage.pool() == 1) continue;
    const int64_t height = builder.tensor(x).dims[1];
    const int64_t width = builder.tensor(x).dims[2];
    if (height < stage.pool() || width < stage.pool()) {
      return absl::InvalidArgumentError(
          absl::StrCat("spec.model.convnet.stages[", s, "].pool: a window of ", stage.pool(),
                       " does not fit the ", height, "x", width,
                       " image that is left; try fewer stages or pool: 1"));
    }
    x = builder.MaxPool(absl::StrCat(prefix, ".pool"), x, stage.pool());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Forward> BuildConvnet(const v1::Convnet& convnet, const DataFacts& facts,
                                     TensorId images, GraphBuilder& builder) {
  const int64_t rows = builder.batch();
  Forward forward;
  forward.classes = facts.classes;
  TensorId x = images;
  TY_RETURN_IF_ERROR(AddStages(convnet, x, builder));

  const std::vector<int64_t> dims = builder.tensor(x).dims;
  if (dims[1] * dims[2] > 1 && dims[3] > 1) {
    x = builder.Transposed("flatten", x, dims[1] * dims[2], dims[3]);
  }
  int64_t in = dims[1] * dims[2] * dims[3];
  int layer = 0;
  for (const int32_t width : convnet.hidden()) {
    const std::string name = absl::StrCat("layers.", layer++);
    x = builder.Drop(absl::StrCat(name, ".dropout"), x, convnet.dropout());
    x = builder.Linear(name, x, rows, in, width, {.std = KaimingStd(in)});
    x = builder.Activate(absl::StrCat(name, ".activation"), x, KindOf(convnet.activation()));
    in = width;
  }
  const std::string last = absl::StrCat("layers.", layer);
  x = builder.Drop(absl::StrCat(last, ".dropout"), x, convnet.dropout());
  forward.logits = builder.Linear(last, x, rows, in, forward.classes, {.std = LecunStd(in)});
  return forward;
}

}  // namespace trainyard::plan
