// Lists of layers: their names, and what needs no shapes. families/layers.cc follows the shapes.

#include <algorithm>
#include <cctype>

#include "absl/container/flat_hash_set.h"
#include "executor/plan/spec/checks.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

using Layer = v1::LayerList::Layer;

constexpr int64_t kMostLayers = 2048;  // repeated ones counted
constexpr int kDeepest = 8;            // blocks within blocks
constexpr size_t kLongestName = 100;   // bytes, without the names of the blocks around it

bool IsName(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
  return !name.empty() && name.size() <= kLongestName && name != "input" && name.front() != '.' &&
         name.back() != '.' && name.find("..") == std::string::npos &&
         std::all_of(name.begin(), name.end(), fits);
}

absl::Status CheckInitStd(const std::string& at, const auto& layer) {
  return layer.has_init_std() ? CheckNotNegative(at + "init_std", layer.init_std())
                              : absl::OkStatus();
}

absl::Status Resolve(const std::string& at, v1::LayerList::Linear& linear) {
  if (!linear.tied().empty()) {
    const bool more =
        linear.has_out() || linear.bias() || linear.transposed() || linear.has_init_std();
    if (more) return Invalid(at + "tied", "has no out, bias, transposed or init_std of its own");
    linear.set_bias(false);
    return absl::OkStatus();
  }
  if (!linear.has_bias()) linear.set_bias(true);
  if (linear.has_out()) TY_RETURN_IF_ERROR(CheckRange(at + "out", linear.out(), 1, kWidest));
  return CheckInitStd(at, linear);
}

absl::Status Resolve(const std::string& at, v1::LayerList::Convolution& convolution) {
  if (!convolution.has_kernel()) convolution.set_kernel(3);
  if (!convolution.has_stride()) convolution.set_stride(1);
  if (!convolution.has_pad()) convolution.set_pad(convolution.kernel() / 2);
  if (!convolution.has_groups()) convolution.set_groups(1);
  if (!convolution.has_bias()) convolution.set_bias(true);
  TY_RETURN_IF_ERROR(CheckRange(at + "out", convolution.out(), 1, kWidest));
  TY_RETURN_IF_ERROR(CheckRange(at + "kernel", convolution.kernel(), 1, 64));
  TY_RETURN_IF_ERROR(CheckRange(at + "stride", convolution.stride(), 1, 64));
  TY_RETURN_IF_ERROR(CheckRange(at + "pad", convolution.pad(), 0, convolution.kernel() - 1));
  TY_RETURN_IF_ERROR(CheckRange(at + "groups", convolution.groups(), 1, kWidest));
  TY_RETURN_IF_ERROR(CheckMultiple(at + "out", convolution.out(), "groups", convolution.groups()));
  return CheckInitStd(at, convolution);
}

absl::Status Resolve(const std::string& at, v1::LayerList::BatchNorm& norm) {
  if (!norm.has_epsilon()) norm.set_epsilon(1e-5);
  if (!norm.has_momentum()) norm.set_momentum(0.1);
  if (!(norm.momentum() > 0 && norm.momentum() <= 1)) {
    return Invalid(at + "momentum", norm.momentum(), " is not in (0, 1]");
  }
  return CheckPositive(at + "epsilon", norm.epsilon());
}

absl::Status Resolve(const std::string& at, v1::LayerList::LayerNorm& norm) {
  if (!norm.has_epsilon()) norm.set_epsilon(1e-5);
  if (!norm.has_bias()) norm.set_bias(true);
  return CheckPositive(at + "epsilon", norm.epsilon());
}

absl::Status Resolve(const std::string& at, v1::LayerList::RmsNorm& norm) {
  if (!norm.has_epsilon()) norm.set_epsilon(1e-5);
  return CheckPositive(at + "epsilon", norm.epsilon());
}

absl::Status Resolve(const std::string& at, v1::LayerList::MaxPool& pool) {
  if (!pool.has_window()) pool.set_window(2);
  if (!pool.has_stride()) pool.set_stride(pool.window());
  TY_RETURN_IF_ERROR(CheckRange(at + "window", pool.window(), 1, 15));
  TY_RETURN_IF_ERROR(CheckRange(at + "stride", pool.stride(), 1, 64));
  return CheckRange(at + "pad", pool.pad(), 0, pool.window() / 2);
}

absl::Status Resolve(const std::string& at, v1::LayerList::Embedding& embedding) {
  if (!embedding.has_init_std()) embedding.set_init_std(1);
  TY_RETURN_IF_ERROR(CheckRange(at + "width", embedding.width(), 1, kWidest));
  if (embedding.has_vocab_size()) {
    TY_RETURN_IF_ERROR(CheckRange(at + "vocab_size", embedding.vocab_size(), 1, int64_t{1} << 24));
  }
  return CheckInitStd(at, embedding);
}

absl::Status Resolve(const std::string& at, v1::LayerList::Positions& positions) {
  if (!positions.has_init_std()) positions.set_init_std(0.02);
  return CheckInitStd(at, positions);
}

absl::Status Resolve(const std::string& at, bool tokens, v1::LayerList::Attention& attention) {
  TY_RETURN_IF_ERROR(CheckRange(at + "heads", attention.heads(), 1, kWidest));
  if (!attention.has_kv_heads()) attention.set_kv_heads(attention.heads());
  if (!attention.has_causal()) attention.set_causal(tokens);
  TY_RETURN_IF_ERROR(CheckRange(at + "kv_heads", attention.kv_heads(), 1, attention.heads()));
  TY_RETURN_IF_ERROR(
      CheckMultiple(at + "heads", attention.heads(), "kv_heads", attention.kv_heads()));
  if (!attention.has_rope_theta()) return absl::OkStatus();
  TY_RETURN_IF_ERROR(CheckFinite(at + "rope_theta", attention.rope_theta()));
  if (attention.rope_theta() >= 1) return absl::OkStatus();
  return Invalid(at + "rope_theta", attention.rope_theta(), " is less than 1");
}

absl::Status ResolveKind(const std::string& at, bool tokens, Layer& layer) {
  switch (layer.kind_case()) {
    case Layer::kLinear:
      return Resolve(at + "linear.", *layer.mutable_linear());
    case Layer::kConvolution:
      return Resolve(at + "convolution.", *layer.mutable_convolution());
    case Layer::kBatchNorm:
      return Resolve(at + "batch_norm.", *layer.mutable_batch_norm());
    case Layer::kLayerNorm:
      return Resolve(at + "layer_norm.", *layer.mutable_layer_norm());
    case Layer::kRmsNorm:
      return Resolve(at + "rms_norm.", *layer.mutable_rms_norm());
    case Layer::kActivation:
      if (v1::Activation_IsValid(layer.activation()) &&
          layer.activation() != v1::ACTIVATION_UNSPECIFIED) {
        return absl::OkStatus();
      }
      return Invalid(at + "activation", static_cast<int>(layer.activation()),
                     " is no activation; use RELU, GELU, GELU_TANH or RELU6");
    case Layer::kDropout:
      return CheckFraction(at + "dropout", layer.dropout());
    case Layer::kMaxPool:
      return Resolve(at + "max_pool.", *layer.mutable_max_pool());
    case Layer::kEmbedding:
      return Resolve(at + "embedding.", *layer.mutable_embedding());
    case Layer::kPositions:
      return Resolve(at + "positions.", *layer.mutable_positions());
    case Layer::kAttention:
      return Resolve(at + "attention.", tokens, *layer.mutable_attention());
    case Layer::kMeanPool:
    case Layer::kFlatten:
    case Layer::kAdd:
    case Layer::kConcat:
    case Layer::kBlock:
    case Layer::kSwiglu:
    case Layer::kSequence:
      return absl::OkStatus();
    case Layer::KIND_NOT_SET:
      break;
  }
  return Invalid(at + "kind", "is missing; set linear, convolution, activation or another one");
}

absl::Status CheckInputs(const std::string& at, const Layer& layer) {
  const bool many = layer.has_add() || layer.has_concat();
  if (many && layer.inputs_size() < 2) {
    return Invalid(at + "inputs", layer.inputs_size(), " are named; ",
                   layer.has_add() ? "add" : "concat", " takes two or more");
  }
  if (!many && layer.inputs_size() > 1) {
    return Invalid(at + "inputs", layer.inputs_size(),
                   " are named; only add and concat take more than one");
  }
  if (layer.inputs_size() > kMostLayers) {
    return Invalid(at + "inputs", layer.inputs_size(), " are more than ", kMostLayers);
  }
  return absl::OkStatus();
}

// How often the layers of a block run.
int64_t TimesOf(const Layer& layer) {
  return layer.block().has_repeat() ? layer.block().repeat() : 1;
}

// Fills the defaults of a list and of the blocks in it; returns how many layers it comes to.
template <typename Layers>
absl::StatusOr<int64_t> ResolveList(const std::string& at, bool tokens, int depth, Layers& layers) {
  if (depth > kDeepest) return Invalid(at, "blocks lie more than ", kDeepest, " deep");
  if (layers.empty()) return Invalid(at, "there is none; add one");
  int64_t count = 0;
  for (int i = 0; i < layers.size(); ++i) {
    Layer& layer = layers[i];
    const std::string here = absl::StrCat(at, "[", i, "].");
    if (layer.name().empty()) layer.set_name(absl::StrCat(i));
    if (!IsName(layer.name())) {
      return Invalid(here + "name", "found '", layer.name().substr(0, kLongestName),
                     "', expected letters, digits, '_' and single '.' between them, at most ",
                     kLongestName, " of them, and not 'input'");
    }
    TY_RETURN_IF_ERROR(CheckInputs(here, layer));
    TY_RETURN_IF_ERROR(ResolveKind(here, tokens, layer));
    int64_t more = 1;
    if (layer.has_block()) {
      if (layer.block().has_repeat()) {
        TY_RETURN_IF_ERROR(CheckRange(here + "block.repeat", layer.block().repeat(), 1, 512));
      }
      TY_ASSIGN_OR_RETURN(more, ResolveList(here + "block.layers", tokens, depth + 1,
                                            *layer.mutable_block()->mutable_layers()));
      more *= TimesOf(layer);
    }
    count += more;
    if (count > kMostLayers) return Invalid(at, "these are more than ", kMostLayers, " layers");
  }
  return count;
}

// Two layers of one name would share their parameters.
template <typename Layers>
absl::Status CheckDistinct(const std::string& at, const std::string& prefix, const Layers& layers,
                           absl::flat_hash_set<std::string>& seen) {
  for (int i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    const std::string name = absl::StrCat(prefix, layer.name());
    const std::string here = absl::StrCat(at, "[", i, "].");
    if (!seen.insert(name).second) {
      return Invalid(here + "name", "another layer is called '", name, "' already");
    }
    for (int64_t t = 0; layer.has_block() && t < TimesOf(layer); ++t) {
      const std::string within =
          layer.block().has_repeat() ? absl::StrCat(name, ".", t, ".") : absl::StrCat(name, ".");
      TY_RETURN_IF_ERROR(
          CheckDistinct(here + "block.layers", within, layer.block().layers(), seen));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ResolveLayers(v1::LayerList& layers) {
  const std::string at = "spec.model.layers.";
  TY_RETURN_IF_ERROR(CheckRange(at + "context", layers.context(), 0, int64_t{1} << 20));
  TY_RETURN_IF_ERROR(
      ResolveList(at + "layers", layers.context() > 0, 0, *layers.mutable_layers()).status());
  absl::flat_hash_set<std::string> seen;
  return CheckDistinct(at + "layers", "", layers.layers(), seen);
}

}  // namespace trainyard::plan
