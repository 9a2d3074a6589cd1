// A model as a list of layers (v1::LayerList): follows names and shapes, and says what does not
// fit.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/plan/families/families.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

using Layer = v1::LayerList::Layer;
using Layers = google::protobuf::RepeatedPtrField<Layer>;

// What a layer leaves.
struct Value {
  TensorId id = kNone;
  std::vector<int64_t> dims = {};  // of a sample
  int maker = -1;                  // index in LayerBuilder::made_; -1: the data
  bool tokens = false;             // ids
  bool trained = false;            // depends on a parameter

  int64_t last() const { return dims.back(); }
  int64_t size() const {
    int64_t n = 1;
    for (const int64_t dim : dims) n *= dim;
    return n;
  }
  std::string shape() const { return absl::StrCat("[", absl::StrJoin(dims, ", "), "]"); }
};

// Where a layer stands: in messages, and in the names of parameters.
struct LayerPlace {
  std::string at, name;
};

template <typename... Parts>
absl::Status Wrong(const LayerPlace& place, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(place.at, " (", place.name, "): ", parts...));
}

absl::Status Unfit(const LayerPlace& place, const Value& found, const char* expected) {
  return Wrong(place, "found ", found.shape(), found.tokens ? " token ids" : "", ", expected ",
               expected);
}

class LayerBuilder {
 public:
  LayerBuilder(const DataFacts& facts, int64_t classes, GraphBuilder& builder)
      : facts_(facts), classes_(classes), builder_(builder) {}

  absl::StatusOr<Value> Run(const Layers& layers, const Value& input) {
    TY_ASSIGN_OR_RETURN(Value last, RunList("spec.model.layers.layers", "", layers, input));
    if (last.maker >= 0) made_[last.maker].used = true;
    for (const Made& made : made_) {
      if (!made.used) return Wrong(made.place, "no layer takes what it leaves");
    }
    if (!last.trained) {
      return absl::InvalidArgumentError("spec.model.layers: nothing here has parameters to train");
    }
    return last;
  }

 private:
  // The names that a list knows: its own layers so far and its input, then those around it.
  struct Scope {
    const Scope* around = nullptr;
    Value input;
    absl::flat_hash_map<std::string, Value> own;

    const Value* Find(const std::string& name) const {
      if (name == "input") return &input;
      const auto found = own.find(name);
      if (found != own.end()) return &found->second;
      return around == nullptr || name.empty() ? nullptr : around->FindLayer(name);
    }
    const Value* FindLayer(const std::string& name) const {
      return name == "input" ? nullptr : Find(name);
    }
  };

  struct Made {
    LayerPlace place;
    bool used = false;
  };

  absl::StatusOr<Value> RunList(const std::string& at, const std::string& prefix,
                                const Layers& layers, const Value& input,
                                const Scope* around = nullptr) {
    Scope scope{.around = around, .input = input};
    Value previous = input;
    for (int i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const LayerPlace place{absl::StrCat(at, "[", i, "]"), absl::StrCat(prefix, layer.name())};
      TY_ASSIGN_OR_RETURN(const std::vector<Value> inputs, InputsOf(place, layer, previous, scope));
      if (layer.has_block()) {
        TY_ASSIGN_OR_RETURN(previous, RunBlock(place, layer.block(), inputs[0], scope));
      } else {
        for (const Value& value : inputs) Take(value);
        if (AreOneOp(layers, i)) {
          previous = AddPositions(place, layer.positions(), inputs[0], /*within_embedding=*/true);
        } else {
          TY_ASSIGN_OR_RETURN(previous, Build(place, layer, inputs));
        }
        TY_RETURN_IF_ERROR(builder_.status());
        previous.maker = static_cast<int>(made_.size());
        made_.push_back({place});
      }
      scope.own[layer.name()] = previous;
    }
    return previous;
  }

  // A layer is about to read `value`, as its dims say.
  void Take(const Value& value) {
    if (value.maker >= 0) made_[value.maker].used = true;
    std::vector<int64_t> dims = value.dims;
    dims.insert(dims.begin(), builder_.batch());
    builder_.View(value.id, std::move(dims));
  }

  static bool IsNamed(const Layers& layers, const std::string& name) {
    return std::any_of(layers.begin(), layers.end(), [&](const Layer& layer) {
      return std::find(layer.inputs().begin(), layer.inputs().end(), name) !=
                 layer.inputs().end() ||
             (layer.has_block() && IsNamed(layer.block().layers(), name));
    });
  }

  // Positions right behind an embedding, of which nobody else takes what it leaves.
  static bool AreOneOp(const Layers& layers, int i) {
    return i > 0 && layers[i].has_positions() && layers[i].inputs().empty() &&
           layers[i - 1].has_embedding() && !IsNamed(layers, layers[i - 1].name());
  }

  absl::StatusOr<Value> RunBlock(const LayerPlace& place, const v1::LayerList::Block& block,
                                 Value value, const Scope& scope) {
    const int times = block.has_repeat() ? block.repeat() : 1;
    for (int t = 0; t < times; ++t) {
      const std::string prefix = block.has_repeat() ? absl::StrCat(place.name, ".", t, ".")
                                                    : absl::StrCat(place.name, ".");
      TY_ASSIGN_OR_RETURN(value, RunList(absl::StrCat(place.at, ".block.layers"), prefix,
                                         block.layers(), value, &scope));
    }
    return value;
  }

  static absl::StatusOr<std::vector<Value>> InputsOf(const LayerPlace& place, const Layer& layer,
                                                     const Value& previous, const Scope& scope) {
    if (layer.inputs().empty()) return std::vector<Value>{previous};
    std::vector<Value> inputs;
    for (const std::string& name : layer.inputs()) {
      const Value* value = scope.Find(name);
      if (value == nullptr) {
        return Wrong(place, "the input '", name, "' is no layer before it");
      }
      inputs.push_back(*value);
    }
    return inputs;
  }

  absl::StatusOr<Value> Build(const LayerPlace& place, const Layer& layer,
                              const std::vector<Value>& inputs) {
    const Value& x = inputs[0];
    if (layer.has_embedding()) return Embed(place, layer.embedding(), x);
    for (const Value& value : inputs) {
      if (value.tokens) return Unfit(place, value, "what an embedding makes of them");
    }
    switch (layer.kind_case()) {
      case Layer::kLinear:
        return Linear(place, layer.linear(), x);
      case Layer::kConvolution:
        return Convolve(place, layer.convolution(), x);
      case Layer::kBatchNorm:
      case Layer::kLayerNorm:
      case Layer::kRmsNorm:
        return Normalise(place, layer, x);
      case Layer::kActivation:
        return Like(x, builder_.Activate(place.name, x.id, KindOf(layer.activation())));
      case Layer::kDropout:
        return Like(x, builder_.Drop(place.name, x.id, layer.dropout()));
      case Layer::kMaxPool:
        return MaxPool(place, layer.max_pool(), x);
      case Layer::kMeanPool:
        return MeanPool(place, x);
      case Layer::kFlatten:
        return Flatten(place, x);
      case Layer::kPositions:
        if (x.dims.size() != 2) return Unfit(place, x, "[time, features]");
        return AddPositions(place, layer.positions(), x, /*within_embedding=*/false);
      case Layer::kAttention:
        return Attend(place, layer.attention(), x);
      case Layer::kAdd:
        return Add(place, inputs);
      case Layer::kConcat:
        return Concat(place, inputs);
      case Layer::kSwiglu:
        return SwiGlu(place, x);
      case Layer::kSequence:
        if (x.dims.size() != 3) return Unfit(place, x, "[height, width, channels]");
        return Shaped(x, x.id, {x.dims[0] * x.dims[1], x.dims[2]});
      default:
        return Wrong(place, "has no kind");
    }
  }

  static Value Shaped(const Value& x, TensorId id, std::vector<int64_t> dims) {
    return {.id = id, .dims = std::move(dims), .trained = x.trained};
  }
  static Value Like(const Value& x, TensorId id) { return Shaped(x, id, x.dims); }
  static Value Trained(Value value) {
    value.trained = true;
    return value;
  }
  static std::vector<int64_t> WithLast(std::vector<int64_t> dims, int64_t last) {
    dims.back() = last;
    return dims;
  }

  int64_t RowsOf(const Value& x) const { return builder_.batch() * (x.size() / x.last()); }

  absl::StatusOr<Value> Linear(const LayerPlace& place, const v1::LayerList::Linear& linear,
                               const Value& x) {
    if (x.dims.size() > 2)
      return Unfit(place, x, "[features] or [time, features]; put flatten before");
    if (!linear.tied().empty()) return Tied(place, linear.tied(), x);
    const int64_t out = linear.has_out() ? linear.out() : classes_;
    const double std = linear.has_init_std() ? linear.init_std() : LecunStd(3 * x.last());
    using Layout = GraphBuilder::WeightLayout;
    const TensorId y =
        builder_.Linear(place.name, x.id, RowsOf(x), x.last(), out,
                        {.layout = linear.transposed() ? Layout::kInOut : Layout::kOutIn,
                         .bias = linear.bias(),
                         .std = std});
    return Trained(Shaped(x, y, WithLast(x.dims, out)));
  }

  absl::StatusOr<Value> Tied(const LayerPlace& place, const std::string& name, const Value& x) {
    const auto found = tables_.find(name);
    if (found == tables_.end()) {
      return Wrong(place, "tied: '", name, "' is no embedding before it (by its full name)");
    }
    const std::vector<int64_t> dims = builder_.tensor(found->second).dims;
    if (dims[1] != x.last()) {
      return Wrong(place, "tied: the vectors of '", name, "' have ", dims[1],
                   " elements, its input ", x.last());
    }
    const TensorId y =
        builder_.Project(place.name, x.id, found->second, RowsOf(x), dims[1], dims[0]);
    return Trained(Shaped(x, y, WithLast(x.dims, dims[0])));
  }

  absl::StatusOr<Value> Convolve(const LayerPlace& place, const v1::LayerList::Convolution& layer,
                                 const Value& x) {
    if (x.dims.size() != 3) return Unfit(place, x, "[height, width, channels]");
    const int64_t in = x.last(), kernel = layer.kernel(), pad = layer.pad();
    if (in % layer.groups() != 0) {
      return Wrong(place, "its input's ", in, " channels are not a multiple of groups ",
                   layer.groups());
    }
    if (x.dims[0] + 2 * pad < kernel || x.dims[1] + 2 * pad < kernel) {
      return Wrong(place, "a kernel of ", kernel, " does not fit ", x.shape(), " padded by ", pad);
    }
    const int64_t fan_in = in / layer.groups() * kernel * kernel;
    const TensorId y = builder_.Convolution(
        place.name, x.id, layer.out(),
        {.kernel = kernel,
         .stride = layer.stride(),
         .pad = pad,
         .groups = layer.groups(),
         .bias = layer.bias(),
         .std = layer.has_init_std() ? layer.init_std() : LecunStd(3 * fan_in)});
    const auto size = [&](int64_t n) { return (n + 2 * pad - kernel) / layer.stride() + 1; };
    return Trained(Shaped(x, y, {size(x.dims[0]), size(x.dims[1]), layer.out()}));
  }

  absl::StatusOr<Value> Normalise(const LayerPlace& place, const Layer& layer, const Value& x) {
    const int64_t rows = RowsOf(x), cols = x.last();
    TensorId y = kNone;
    if (layer.has_batch_norm()) {
      y = builder_.BatchNorm(
          place.name, x.id,
          {.epsilon = layer.batch_norm().epsilon(), .momentum = layer.batch_norm().momentum()});
    } else if (layer.has_layer_norm()) {
      y = builder_.LayerNorm(place.name, x.id, rows, cols, layer.layer_norm().bias(),
                             layer.layer_norm().epsilon());
    } else {
      y = builder_.RmsNorm(place.name, x.id, rows, cols, layer.rms_norm().epsilon());
    }
    return Trained(Like(x, y));
  }

  absl::StatusOr<Value> MaxPool(const LayerPlace& place, const v1::LayerList::MaxPool& pool,
                                const Value& x) {
    if (x.dims.size() != 3) return Unfit(place, x, "[height, width, channels]");
    const int64_t window = pool.window(), pad = pool.pad();
    if (x.dims[0] + 2 * pad < window || x.dims[1] + 2 * pad < window) {
      return Wrong(place, "a window of ", window, " does not fit ", x.shape(), " padded by ", pad);
    }
    const auto size = [&](int64_t n) { return (n + 2 * pad - window) / pool.stride() + 1; };
    return Shaped(x, builder_.MaxPool(place.name, x.id, window, pool.stride(), pad),
                  {size(x.dims[0]), size(x.dims[1]), x.last()});
  }

  absl::StatusOr<Value> MeanPool(const LayerPlace& place, const Value& x) {
    if (x.dims.size() < 2) return Unfit(place, x, "[height, width, channels] or [time, features]");
    return Shaped(x, builder_.MeanPool(place.name, x.id), {x.last()});
  }

  absl::StatusOr<Value> Flatten(const LayerPlace& place, const Value& x) {
    TensorId y = x.id;
    if (x.dims.size() == 3 && x.last() > 1 && x.dims[0] * x.dims[1] > 1) {
      y = builder_.Transposed(place.name, x.id, x.dims[0] * x.dims[1], x.last());
    }
    return Shaped(x, y, {x.size()});
  }

  absl::StatusOr<Value> Embed(const LayerPlace& place, const v1::LayerList::Embedding& embedding,
                              const Value& x) {
    if (!x.tokens) return Unfit(place, x, "token ids");
    const int64_t vocab = embedding.has_vocab_size() ? embedding.vocab_size() : facts_.vocab;
    if (vocab < facts_.vocab) {
      return Wrong(place, "vocab_size: ", vocab, " is less than the ", facts_.vocab,
                   " tokens of the data");
    }
    const TensorId table = builder_.Parameter(absl::StrCat(place.name, ".weight"),
                                              {vocab, embedding.width()}, embedding.init_std());
    tables_[place.name] = table;
    const TensorId y = builder_.Embedding(place.name, x.id, table, kNone, x.dims[0]);
    return Trained(Shaped(x, y, {x.dims[0], embedding.width()}));
  }

  Value AddPositions(const LayerPlace& place, const v1::LayerList::Positions& positions,
                     const Value& x, bool within_embedding) {
    const TensorId table =
        builder_.Parameter(absl::StrCat(place.name, ".weight"), x.dims, positions.init_std());
    if (within_embedding) {
      builder_.AddPositions(x.id, table);
      return x;
    }
    return Trained(Like(x, builder_.AddBias(place.name, x.id, table, x.size())));
  }

  absl::StatusOr<Value> Attend(const LayerPlace& place, const v1::LayerList::Attention& attention,
                               const Value& x) {
    const int64_t heads = attention.heads(), kv_heads = attention.kv_heads();
    const int64_t all = heads + 2 * kv_heads;
    if (x.dims.size() != 2) return Unfit(place, x, "[time, features]");
    if (x.last() % all != 0) {
      return Wrong(place, "found ", x.shape(), ", expected features that are a multiple of the ",
                   all, " heads of queries, keys and values");
    }
    const int64_t width = x.last() / all, time = x.dims[0];
    TensorId qkv = x.id;
    if (attention.has_rope_theta()) {
      if (width % 2 != 0) {
        return Wrong(place, "heads of ", width, " elements cannot be paired by rotary positions");
      }
      qkv = builder_.Rotate(absl::StrCat(place.name, ".rotary"), qkv, time, all, heads + kv_heads,
                            width, attention.rope_theta());
    }
    const TensorId y = builder_.Attention(place.name, qkv, time, heads, kv_heads, width,
                                          {.causal = attention.causal()});
    return Shaped(x, y, {time, heads * width});
  }

  absl::StatusOr<Value> Add(const LayerPlace& place, const std::vector<Value>& inputs) {
    Value sum = inputs[0];
    for (size_t i = 1; i < inputs.size(); ++i) {
      if (inputs[i].dims != sum.dims) {
        return Wrong(place, "found ", sum.shape(), " and ", inputs[i].shape(),
                     ", expected inputs of one shape");
      }
      const bool trained = sum.trained || inputs[i].trained;
      sum = Like(sum, builder_.Sum(place.name, sum.id, inputs[i].id));
      sum.trained = trained;
    }
    return sum;
  }

  absl::StatusOr<Value> Concat(const LayerPlace& place, const std::vector<Value>& inputs) {
    Value all = inputs[0];
    for (size_t i = 1; i < inputs.size(); ++i) {
      const Value& next = inputs[i];
      if (WithLast(next.dims, 1) != WithLast(all.dims, 1)) {
        return Wrong(place, "found ", all.shape(), " and ", next.shape(),
                     ", expected inputs that differ in their last dimension alone");
      }
      const bool trained = all.trained || next.trained;
      const TensorId y = builder_.Concat(place.name, all.id, all.last(), next.id, next.last());
      all = Shaped(all, y, WithLast(all.dims, all.last() + next.last()));
      all.trained = trained;
    }
    return all;
  }

  absl::StatusOr<Value> SwiGlu(const LayerPlace& place, const Value& x) {
    if (x.last() % 2 != 0) return Unfit(place, x, "an even number of features");
    const int64_t cols = x.last() / 2;
    return Shaped(x, builder_.SwiGlu(place.name, x.id, RowsOf(x), cols), WithLast(x.dims, cols));
  }

  const DataFacts& facts_;
  const int64_t classes_;
  GraphBuilder& builder_;
  std::vector<Made> made_;
  absl::flat_hash_map<std::string, TensorId> tables_;  // of embeddings, by full name
};

}  // namespace

absl::StatusOr<Forward> BuildLayers(const v1::LayerList& layers, const DataFacts& facts,
                                    TensorId images, GraphBuilder& builder) {
  const bool tokens = layers.context() > 0;
  Forward forward;
  Value input{.tokens = tokens};
  if (tokens) {
    TY_RETURN_IF_ERROR(VocabularyFor("layers", layers.context(), facts.vocab, facts).status());
    input.dims = {layers.context()};
    forward.rows_per_sample = layers.context();
    forward.input = builder.Input("input", ElementType::kI32, {builder.batch(), layers.context()});
  } else {
    input.dims = {facts.height, facts.width, facts.channels};
  }
  TY_RETURN_IF_ERROR(builder.status());
  input.id = tokens ? forward.input : images;
  const int64_t classes = tokens ? facts.vocab : facts.classes;
  TY_ASSIGN_OR_RETURN(const Value last,
                      LayerBuilder(facts, classes, builder).Run(layers.layers(), input));
  const bool fits =
      tokens ? last.dims.size() == 2 && last.dims[0] == layers.context() && last.last() >= classes
             : last.dims == std::vector<int64_t>{classes};
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec.model.layers: the last layer leaves ", last.shape(), ", expected ",
        tokens ? absl::StrCat("[", layers.context(), ", ", classes, "], the context and the tokens")
               : absl::StrCat("[", classes, "], the classes"),
        " of the data"));
  }
  forward.logits = last.id;
  forward.classes = last.last();
  return forward;
}

}  // namespace trainyard::plan
