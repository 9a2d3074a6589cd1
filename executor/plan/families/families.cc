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

const char* NameOf(DataFacts::Kind kind) {
  switch (kind) {
    case DataFacts::Kind::kImages:
      return "images";
    case DataFacts::Kind::kTokens:
      return "tokens";
    case DataFacts::Kind::kClicks:
      return "clicks";
  }
  return "";
}

absl::StatusOr<Forward> BuildForward(const v1::Model& model, const DataFacts& facts,
                                     GraphBuilder& builder) {
  const DataFacts::Kind needed = model.has_gpt()    ? DataFacts::Kind::kTokens
                                 : model.has_dlrm() ? DataFacts::Kind::kClicks
                                                    : DataFacts::Kind::kImages;
  if (needed != facts.kind) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model: this family trains on ",
                                                   NameOf(needed), ", but spec.data holds ",
                                                   NameOf(facts.kind)));
  }
  switch (model.family_case()) {
    case v1::Model::kMlp:
      return BuildMlp(model.mlp(), facts, builder);
    case v1::Model::kConvnet:
      return BuildConvnet(model.convnet(), facts, builder);
    case v1::Model::kDlrm:
      return BuildDlrm(model.dlrm(), facts, builder);
    case v1::Model::kGpt:
      return BuildGpt(model.gpt(), facts, builder);
    default:
      return absl::UnimplementedError(
          "spec.model: this family is not built yet; use mlp, convnet, gpt or dlrm");
  }
}

}  // namespace trainyard::plan
