#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/resnet_layout.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kMostBlocks = 512;
constexpr int64_t kLongestContext = int64_t{1} << 20;
constexpr int64_t kLargestVocab = int64_t{1} << 24;

template <typename Family>
absl::Status ResolveActivation(const std::string& at, v1::Activation standard, Family& family) {
  if (family.activation() == v1::ACTIVATION_UNSPECIFIED) family.set_activation(standard);
  return CheckChoice(at + "activation", family.activation(),
                     "activation; use RELU, GELU, GELU_TANH or RELU6");
}

template <typename Widths>
absl::Status CheckWidths(const std::string& field, const Widths& widths) {
  if (widths.size() > kMostBlocks) {
    return Invalid(field, widths.size(), " layers are more than ", kMostBlocks);
  }
  for (int i = 0; i < widths.size(); ++i) {
    TY_RETURN_IF_ERROR(CheckRange(absl::StrCat(field, "[", i, "]"), widths.Get(i), 1, kWidest));
  }
  return absl::OkStatus();
}

absl::Status ResolveMlp(v1::Mlp& mlp) {
  const std::string at = "spec.model.mlp.";
  TY_RETURN_IF_ERROR(CheckWidths(at + "hidden", mlp.hidden()));
  TY_RETURN_IF_ERROR(ResolveActivation(at, v1::RELU, mlp));
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
  TY_RETURN_IF_ERROR(ResolveActivation(at, v1::RELU, convnet));
  return CheckFraction(at + "dropout", convnet.dropout());
}

// What every transformer has.
template <typename Family>
absl::Status CheckBlocks(const std::string& at, const Family& family) {
  TY_RETURN_IF_ERROR(CheckRange(at + "layers", family.layers(), 1, kMostBlocks));
  TY_RETURN_IF_ERROR(CheckRange(at + "width", family.width(), 1, kWidest));
  TY_RETURN_IF_ERROR(CheckRange(at + "heads", family.heads(), 1, kWidest));
  return CheckMultiple(at + "width", family.width(), "heads", family.heads());
}

// And every one over tokens.
template <typename Family>
absl::Status CheckTransformer(const std::string& at, const Family& family) {
  TY_RETURN_IF_ERROR(CheckBlocks(at, family));
  TY_RETURN_IF_ERROR(CheckRange(at + "context", family.context(), 1, kLongestContext));
  if (!family.has_vocab_size()) return absl::OkStatus();
  return CheckRange(at + "vocab_size", family.vocab_size(), 1, kLargestVocab);
}

absl::Status ResolveGpt(v1::Gpt& gpt) {
  const std::string at = "spec.model.gpt.";
  TY_RETURN_IF_ERROR(CheckTransformer(at, gpt));
  if (!gpt.has_mlp_width()) gpt.set_mlp_width(4 * gpt.width());
  TY_RETURN_IF_ERROR(CheckRange(at + "mlp_width", gpt.mlp_width(), 1, 4 * kWidest));
  TY_RETURN_IF_ERROR(CheckFraction(at + "dropout", gpt.dropout()));
  if (!gpt.has_bias()) gpt.set_bias(true);
  if (!gpt.has_tie_embeddings()) gpt.set_tie_embeddings(true);
  return ResolveActivation(at, v1::GELU_TANH, gpt);
}

absl::Status ResolveLlama(v1::Llama& llama) {
  const std::string at = "spec.model.llama.";
  TY_RETURN_IF_ERROR(CheckTransformer(at, llama));
  if (llama.width() / llama.heads() % 2 != 0) {
    return Invalid(at + "width", llama.width(), " makes heads of ", llama.width() / llama.heads(),
                   ", which rotary positions cannot pair; ",
                   TryMultiples(llama.width(), 2 * llama.heads()));
  }
  if (!llama.has_kv_heads()) llama.set_kv_heads(llama.heads());
  TY_RETURN_IF_ERROR(CheckRange(at + "kv_heads", llama.kv_heads(), 1, llama.heads()));
  TY_RETURN_IF_ERROR(CheckMultiple(at + "heads", llama.heads(), "kv_heads", llama.kv_heads()));
  if (!llama.has_mlp_width()) llama.set_mlp_width((llama.width() * 8 / 3 + 63) / 64 * 64);
  TY_RETURN_IF_ERROR(CheckRange(at + "mlp_width", llama.mlp_width(), 1, 4 * kWidest));
  if (!llama.has_rope_theta()) llama.set_rope_theta(10000);
  TY_RETURN_IF_ERROR(CheckFinite(at + "rope_theta", llama.rope_theta()));
  if (llama.rope_theta() < 1)
    return Invalid(at + "rope_theta", llama.rope_theta(), " is less than 1");
  if (!llama.has_tie_embeddings()) llama.set_tie_embeddings(false);
  if (!llama.has_epsilon()) llama.set_epsilon(1e-5);
  return CheckPositive(at + "epsilon", llama.epsilon());
}

// What the encoders have in common.
template <typename Family>
absl::Status ResolveEncoder(const std::string& at, Family& family) {
  if (!family.has_mlp_width()) family.set_mlp_width(4 * family.width());
  TY_RETURN_IF_ERROR(CheckRange(at + "mlp_width", family.mlp_width(), 1, 4 * kWidest));
  TY_RETURN_IF_ERROR(CheckFraction(at + "dropout", family.dropout()));
  TY_RETURN_IF_ERROR(ResolveActivation(at, v1::GELU, family));
  if (!family.has_epsilon()) family.set_epsilon(1e-12);
  return CheckPositive(at + "epsilon", family.epsilon());
}

absl::Status ResolveBert(v1::Bert& bert) {
  const std::string at = "spec.model.bert.";
  TY_RETURN_IF_ERROR(CheckTransformer(at, bert));
  TY_RETURN_IF_ERROR(ResolveEncoder(at, bert));
  if (!bert.has_mask_rate()) bert.set_mask_rate(0.15);
  if (!(bert.mask_rate() > 0 && bert.mask_rate() < 1)) {
    return Invalid(at + "mask_rate", bert.mask_rate(), " is not in (0, 1)");
  }
  if (bert.has_mask_token()) {
    TY_RETURN_IF_ERROR(CheckRange(at + "mask_token", bert.mask_token(), 0, kLargestVocab - 1));
  }
  if (!bert.has_token_types()) bert.set_token_types(2);
  return CheckRange(at + "token_types", bert.token_types(), 1, 256);
}

absl::Status ResolveVit(v1::Vit& vit) {
  const std::string at = "spec.model.vit.";
  TY_RETURN_IF_ERROR(CheckBlocks(at, vit));
  TY_RETURN_IF_ERROR(CheckRange(at + "patch", vit.patch(), 1, 1024));
  return ResolveEncoder(at, vit);
}

absl::Status ResolveStem(const std::string& field, v1::Resnet::Stem stem) {
  if (stem == v1::Resnet::CIFAR || stem == v1::Resnet::IMAGENET) return absl::OkStatus();
  return Invalid(field, static_cast<int>(stem),
                 " is no stem; use CIFAR for images up to about 64x64, else IMAGENET");
}

absl::Status ResolveMobilenet(v1::Mobilenet& mobilenet) {
  const std::string at = "spec.model.mobilenet.";
  TY_RETURN_IF_ERROR(ResolveStem(at + "stem", mobilenet.stem()));
  if (!mobilenet.has_width()) mobilenet.set_width(1);
  if (!(mobilenet.width() >= 0.05 && mobilenet.width() <= 4)) {
    return Invalid(at + "width", mobilenet.width(), " is not in [0.05, 4]");
  }
  if (!mobilenet.has_dropout()) mobilenet.set_dropout(0.2);
  return CheckFraction(at + "dropout", mobilenet.dropout());
}

absl::Status ResolveDlrm(v1::Dlrm& dlrm) {
  const std::string at = "spec.model.dlrm.";
  if (dlrm.table_rows_size() > kMostTables) {
    return Invalid(at + "table_rows", dlrm.table_rows_size(), " tables are more than ",
                   kMostTables);
  }
  for (int t = 0; t < dlrm.table_rows_size(); ++t) {
    TY_RETURN_IF_ERROR(
        CheckRange(absl::StrCat(at, "table_rows[", t, "]"), dlrm.table_rows(t), 1, kMostIds));
  }
  TY_RETURN_IF_ERROR(CheckRange(at + "embedding_width", dlrm.embedding_width(), 1, 4096));
  TY_RETURN_IF_ERROR(CheckWidths(at + "bottom", dlrm.bottom()));
  return CheckWidths(at + "top", dlrm.top());
}

absl::Status ResolveResnet(v1::Resnet& resnet) {
  const std::string at = "spec.model.resnet.";
  if (!LayoutOfResnet(resnet.depth())) {
    return Invalid(at + "depth", resnet.depth(),
                   " is no depth of a resnet; use 18, 34, 50, 101 or 152");
  }
  TY_RETURN_IF_ERROR(ResolveStem(at + "stem", resnet.stem()));
  if (!resnet.has_width()) resnet.set_width(64);
  return CheckRange(at + "width", resnet.width(), 1, 4096);
}

}  // namespace

Windowing WindowingOf(const v1::Model& model) {
  switch (model.family_case()) {
    case v1::Model::kBert:
      return {.context = model.bert().context(),
              .mask_rate = model.bert().mask_rate(),
              .mask_token = model.bert().has_mask_token() ? model.bert().mask_token() : -1};
    case v1::Model::kGpt:
      return {.context = model.gpt().context()};
    case v1::Model::kLayers:
      return {.context = model.layers().context()};
    case v1::Model::kLlama:
      return {.context = model.llama().context()};
    default:
      return {};
  }
}

int64_t ContextOf(const v1::Model& model) { return WindowingOf(model).context; }

std::string FamilyOf(const v1::Model& model) {
  const auto* family = v1::Model::descriptor()->FindFieldByNumber(model.family_case());
  return family == nullptr ? "" : family->name();
}

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
      return ResolveLlama(*model.mutable_llama());
    case v1::Model::kBert:
      return ResolveBert(*model.mutable_bert());
    case v1::Model::kDlrm:
      return ResolveDlrm(*model.mutable_dlrm());
    case v1::Model::kLayers:
      return ResolveLayers(*model.mutable_layers());
    case v1::Model::kMobilenet:
      return ResolveMobilenet(*model.mutable_mobilenet());
    case v1::Model::kVit:
      return ResolveVit(*model.mutable_vit());
    case v1::Model::FAMILY_NOT_SET:
      break;
  }
  return Invalid("spec.model", "there is none; set mlp, gpt, resnet or another family, or layers");
}

}  // namespace trainyard::plan
