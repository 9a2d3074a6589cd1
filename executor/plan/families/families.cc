#include "executor/plan/families/families.h"

#include <cmath>

#include "storage/base/status.h"

namespace trainyard::plan {

double KaimingStd(int64_t fan_in) { return std::sqrt(2.0 / static_cast<double>(fan_in)); }
double LecunStd(int64_t fan_in) { return std::sqrt(1.0 / static_cast<double>(fan_in)); }

ActivationKind KindOf(v1::Activation activation) {
  switch (activation) {
    case v1::GELU:
      return ActivationKind::kGelu;
    case v1::GELU_TANH:
      return ActivationKind::kGeluTanh;
    default:
      return ActivationKind::kRelu;
  }
}

absl::StatusOr<Forward> BuildForward(const v1::Model& model, const DataFacts& facts,
                                     GraphBuilder& builder) {
  const bool needs_tokens = model.has_gpt();
  const bool has_tokens = facts.kind == DataFacts::Kind::kTokens;
  if (needs_tokens != has_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.model: this family trains on ", needs_tokens ? "tokens" : "images",
                     ", but spec.data holds ", has_tokens ? "tokens" : "images"));
  }
  switch (model.family_case()) {
    case v1::Model::kMlp:
      return BuildMlp(model.mlp(), facts, builder);
    case v1::Model::kConvnet:
      return BuildConvnet(model.convnet(), facts, builder);
    case v1::Model::kGpt:
      return BuildGpt(model.gpt(), facts, builder);
    case v1::Model::kResnet:
      return BuildResnet(model.resnet(), facts, builder);
    default:
      return absl::UnimplementedError(
          "spec.model: this family is not built yet; use mlp, convnet, gpt or resnet");
  }
}

}  // namespace trainyard::plan
