#include "executor/plan/families/families.h"
#include "executor/plan/spec_checks.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kWidest = 65536;
constexpr int64_t kMostLayers = 512;
constexpr int64_t kLongestContext = int64_t{1} << 20;
constexpr int64_t kLargestVocab = int64_t{1} << 24;

absl::Status ResolveActivation(const std::string& field, v1::Activation fallback,
                               v1::Activation found, v1::Activation& resolved) {
  if (!v1::Activation_IsValid(found)) {
    return Invalid(field, static_cast<int>(found),
                   " is no activation; use RELU, GELU or GELU_TANH");
  }
  resolved = found == v1::ACTIVATION_UNSPECIFIED ? fallback : found;
  return absl::OkStatus();
}

template <typename Widths>
absl::Status CheckWidths(const std::string& field, const Widths& widths) {
  if (widths.size() > kMostLayers) {
    return Invalid(field, widths.size(), " layers are more than ", kMostLayers);
  }
  for (int i = 0; i < widths.size(); ++i) {
    TY_RETURN_IF_ERROR(CheckRange(absl::StrCat(field, "[", i, "]"), widths.Get(i), 1, kWidest));
  }
  return absl::OkStatus();
}

absl::Status ResolveMlp(v1::Mlp& mlp) {
  const std::string at = "spec.model.mlp.";
  TY_RETURN_IF_ERROR(CheckWidths(at + "hidden", mlp.hidden()));
  v1::Activation activation;
  TY_RETURN_IF_ERROR(ResolveActivation(at + "activation", v1::RELU, mlp.activation(), activation));
  mlp.set_activation(activation);
  return CheckFraction(at + "dropout", mlp.dropout());
}

absl::Status ResolveStage(const std::string& at, v1::Convnet::Stage& stage) {
  if (!stage.has_kernel()) stage.set_kernel(3);
  if (!stage.has_convolutions()) stage.set_convolutions(1);
  if (!stage.has_pool()) stage.set_pool(2);
  TY_RETURN_IF_ERROR(CheckRange(at + "channels", stage.channels(), 1, 4096));
  TY_RETURN_IF_ERROR(CheckRange(at + "kernel", stage.kernel(), 1, 11));
  if (stage.kernel() % 2 == 0) {
    return Invalid(at + "kernel", stage.kernel(), " is even and cannot keep height and width; try ",
                   stage.kernel() - 1, " or ", stage.kernel() + 1);
  }
  TY_RETURN_IF_ERROR(CheckRange(at + "convolutions", stage.convolutions(), 1, 64));
  return CheckRange(at + "pool", stage.pool(), 1, 15);
}

absl::Status ResolveConvnet(v1::Convnet& convnet) {
  const std::string at = "spec.model.convnet.";
  if (convnet.stages_size() == 0) {
    return Invalid(at + "stages", "there is none; add one, or use spec.model.mlp");
  }
  if (convnet.stages_size() > 64) {
    return Invalid(at + "stages", convnet.stages_size(), " are more than 64");
  }
  for (int i = 0; i < convnet.stages_size(); ++i) {
    TY_RETURN_IF_ERROR(
        ResolveStage(absl::StrCat(at, "stages[", i, "]."), *convnet.mutable_stages(i)));
  }
  TY_RETURN_IF_ERROR(CheckWidths(at + "hidden", convnet.hidden()));
  v1::Activation activation;
  TY_RETURN_IF_ERROR(
      ResolveActivation(at + "activation", v1::RELU, convnet.activation(), activation));
  convnet.set_activation(activation);
  return CheckFraction(at + "dropout", convnet.dropout());
}

absl::Status ResolveGpt(v1::Gpt& gpt) {
  const std::string at = "spec.model.gpt.";
  TY_RETURN_IF_ERROR(CheckRange(at + "layers", gpt.layers(), 1, kMostLayers));
  TY_RETURN_IF_ERROR(CheckRange(at + "width", gpt.width(), 1, kWidest));
  TY_RETURN_IF_ERROR(CheckRange(at + "heads", gpt.heads(), 1, kWidest));
  if (gpt.width() % gpt.heads() != 0) {
    return Invalid(at + "width", gpt.width(), " is not a multiple of heads ", gpt.heads(), "; ",
                   TryMultiples(gpt.width(), gpt.heads()));
  }
  TY_RETURN_IF_ERROR(CheckRange(at + "context", gpt.context(), 1, kLongestContext));
  if (gpt.has_vocab_size()) {
    TY_RETURN_IF_ERROR(CheckRange(at + "vocab_size", gpt.vocab_size(), 1, kLargestVocab));
  }
  if (!gpt.has_mlp_width()) gpt.set_mlp_width(4 * gpt.width());
  TY_RETURN_IF_ERROR(CheckRange(at + "mlp_width", gpt.mlp_width(), 1, 4 * kWidest));
  TY_RETURN_IF_ERROR(CheckFraction(at + "dropout", gpt.dropout()));
  if (!gpt.has_bias()) gpt.set_bias(true);
  if (!gpt.has_tie_embeddings()) gpt.set_tie_embeddings(true);
  v1::Activation activation;
  TY_RETURN_IF_ERROR(
      ResolveActivation(at + "activation", v1::GELU_TANH, gpt.activation(), activation));
  gpt.set_activation(activation);
  return absl::OkStatus();
}

absl::Status ResolveResnet(v1::Resnet& resnet) {
  const std::string at = "spec.model.resnet.";
  if (!LayoutOfResnet(resnet.depth())) {
    return Invalid(at + "depth", resnet.depth(),
                   " is no depth of a resnet; use 18, 34, 50, 101 or 152");
  }
  if (resnet.stem() != v1::Resnet::CIFAR && resnet.stem() != v1::Resnet::IMAGENET) {
    return Invalid(at + "stem", static_cast<int>(resnet.stem()),
                   " is no stem; use CIFAR for images up to about 64x64, else IMAGENET");
  }
  if (!resnet.has_width()) resnet.set_width(64);
  return CheckRange(at + "width", resnet.width(), 1, 4096);
}

}  // namespace

absl::Status ResolveModel(v1::Model& model) {
  switch (model.family_case()) {
    case v1::Model::kMlp:
      return ResolveMlp(*model.mutable_mlp());
    case v1::Model::kConvnet:
      return ResolveConvnet(*model.mutable_convnet());
    case v1::Model::kGpt:
      return ResolveGpt(*model.mutable_gpt());
    case v1::Model::kResnet:
      return ResolveResnet(*model.mutable_resnet());
    case v1::Model::kLlama:
      return NotBuilt("spec.model.llama", "it", "use gpt");
    case v1::Model::kBert:
      return NotBuilt("spec.model.bert", "it", "use gpt");
    case v1::Model::kDlrm:
      return NotBuilt("spec.model.dlrm", "it", "use mlp");
    case v1::Model::kLayers:
      return NotBuilt("spec.model.layers", "a list of layers", "use mlp, convnet or gpt");
    case v1::Model::FAMILY_NOT_SET:
      break;
  }
  return Invalid("spec.model", "there is none; set mlp, convnet, gpt or resnet");
}

}  // namespace trainyard::plan
