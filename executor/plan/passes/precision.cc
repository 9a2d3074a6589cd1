#include "executor/plan/passes/precision.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

const char* SuffixOf(ElementType type) {
  return type == ElementType::kBF16 ? ".bf16" : type == ElementType::kF16 ? ".f16" : ".f32";
}

// The tensors that a residual stream passes through: what a sum of two reads, and what reaches one
// through ops that keep the type.
class ResidualStreams {
 public:
  explicit ResidualStreams(std::vector<Op> ops) {
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      if (const auto* sum = std::get_if<Add>(&*op)) tensors_.insert({sum->a, sum->b});
      std::visit([this](auto& o) { PassOn(o); }, *op);
    }
  }
  bool contains(TensorId id) const { return tensors_.contains(id); }

 private:
  template <typename O>
  void PassOn(O&) {}
  void PassOn(ActivationForward& o) { Join(o.y, o.x); }
  void PassOn(Dropout& o) { Join(o.y, o.x); }
  void Join(TensorId y, TensorId x) {
    if (tensors_.contains(y)) tensors_.insert(x);
  }

  absl::flat_hash_set<TensorId> tensors_;
};

// Whether all that an op reads is of the type that products compute in.
bool ReadsNarrow(const Op& op) {
  return std::holds_alternative<Matmul>(op) || std::holds_alternative<AddProduct>(op) ||
         std::holds_alternative<ConvolutionForward>(op) ||
         std::holds_alternative<BatchNormForward>(op) ||
         std::holds_alternative<BatchNormInference>(op);
}

// The tensors that other ops read, as they are.
absl::flat_hash_set<TensorId> WideReads(std::vector<Op> ops) {
  absl::flat_hash_set<TensorId> tensors;
  for (Op& op : ops) {
    if (ReadsNarrow(op)) continue;
    const auto note = [&](TensorId id, Access access) {
      if (access == Access::kRead) tensors.insert(id);
    };
    std::visit([&](auto& o) { VisitOperands(o, note); }, op);
  }
  return tensors;
}

// One overload per op, each retyping its operands; the op goes to the end of graph.ops afterwards.
class Typing {
 public:
  Typing(const Precision& precision, Graph& graph, absl::flat_hash_map<TensorId, TensorId>& copies)
      : precision_(precision),
        graph_(graph),
        copies_(copies),
        streams_(graph.ops),
        wide_reads_(WideReads(graph.ops)) {}

  TensorId Run() {
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
    for (Op& op : ops) {
      std::visit([this](auto& o) { Retype(o); }, op);
      graph_.ops.push_back(std::move(op));
    }
    TensorId logits = precision_.logits;
    if (precision_.of_logits == ElementType::kF32) ReadWide(logits);
    return logits;
  }

 private:
  ElementType TypeOf(TensorId id) const { return graph_[id].type; }

  // The operand in `type`: itself, the copy of a weight, or a cast that is made once.
  void Read(TensorId& id, ElementType type) {
    if (id == kNone || TypeOf(id) == type) return;
    auto& versions = graph_[id].kind == TensorKind::kParameter ? copies_ : casts_;
    const auto found = versions.find(id);
    if (found != versions.end()) {
      TY_CHECK(TypeOf(found->second) == type, graph_[id].name, " in a third type");
      id = found->second;
      return;
    }
    const bool weight = graph_[id].kind == TensorKind::kParameter;
    Tensor tensor = graph_[id];
    tensor.name = absl::StrCat(tensor.name, SuffixOf(type));
    tensor.type = type;
    tensor.kind = weight ? TensorKind::kWeightCopy : TensorKind::kActivation;
    tensor.parts.clear();
    const TensorId version = graph_.Add(std::move(tensor));
    if (!weight) graph_.ops.push_back(Cast{.x = id, .y = version, .n = graph_[id].elements()});
    versions[id] = version;
    id = version;
  }
  void ReadNarrow(TensorId& id) { Read(id, precision_.type); }
  void ReadWide(TensorId& id) { Read(id, ElementType::kF32); }

  void Write(TensorId id, ElementType type) { graph_.tensors[id].type = type; }
  void WriteNarrow(TensorId id) { Write(id, precision_.type); }

  void Retype(Matmul& o) {
    ReadNarrow(o.a);
    ReadNarrow(o.b);
    Write(o.c, o.c == precision_.logits ? precision_.of_logits : precision_.type);
  }
  void Retype(AddProduct& o) {
    ReadNarrow(o.base);
    ReadNarrow(o.a);
    ReadNarrow(o.b);
    WriteNarrow(o.y);
  }
  void Retype(ConvolutionForward& o) {
    ReadNarrow(o.x);
    ReadNarrow(o.w);
    WriteNarrow(o.y);
  }
  void Retype(AttentionForward& o) {
    ReadNarrow(o.qkv);
    WriteNarrow(o.y);
  }
  void Retype(InteractionForward& o) {
    ReadNarrow(o.x);
    ReadNarrow(o.e);
    WriteNarrow(o.y);
  }

  void Retype(BatchNormForward& o) { RetypeBatchNorm(o); }
  void Retype(BatchNormInference& o) { RetypeBatchNorm(o); }
  template <typename O>
  void RetypeBatchNorm(O& o) {
    ReadNarrow(o.x);
    ReadNarrow(o.residual);
    WriteNarrow(o.y);
  }
  void Retype(LayerNormForward& o) {
    TY_CHECK(o.residual == kNone, "sums go into norms when their types are known");
    ReadWide(o.x);
    if (!streams_.contains(o.y)) WriteNarrow(o.y);
  }

  // A sum is fp32 when one side is, which is then `a`.
  void Retype(Add& o) {
    if (TypeOf(o.a) == TypeOf(o.b)) {
      Write(o.y, TypeOf(o.a));
    } else if (TypeOf(o.b) == ElementType::kF32) {
      std::swap(o.a, o.b);
    }
  }

  void Retype(ActivationForward& o) { Write(o.y, TypeOf(o.x)); }
  void Retype(Dropout& o) { Write(o.y, TypeOf(o.x)); }
  void Retype(MaxPoolForward& o) { Write(o.y, TypeOf(o.x)); }
  void Retype(MeanPoolForward& o) { Write(o.y, TypeOf(o.x)); }
  void Retype(Rotary& o) { Write(o.y, TypeOf(o.x)); }
  void Retype(SwiGluForward& o) { Write(o.y, TypeOf(o.x)); }
  void Retype(Transpose& o) { Write(o.y, TypeOf(o.x)); }

  // In fp32, as what they make: the beginnings of residual streams.
  void Retype(AddBias& o) { ReadWide(o.x); }
  void Retype(Concat& o) {
    ReadWide(o.a);
    ReadWide(o.b);
  }
  void Retype(Split& o) { ReadWide(o.x); }
  void Retype(EmbeddingForward&) {}
  void Retype(NormalizeImages& o) {
    if (!wide_reads_.contains(o.y)) WriteNarrow(o.y);
  }
  void Retype(EmbeddingTablesForward&) {}

  // What no forward graph holds. Listed one by one, so that a new op must be decided upon.
  void Retype(ActivationBackward&) { NotForward(); }
  void Retype(AdamWRows&) { NotForward(); }
  void Retype(AdamWStep&) { NotForward(); }
  void Retype(AttentionBackward&) { NotForward(); }
  void Retype(BatchNormBackward&) { NotForward(); }
  void Retype(BinaryCrossEntropy&) { NotForward(); }
  void Retype(Cast&) { NotForward(); }
  void Retype(ClipScale&) { NotForward(); }
  void Retype(ColumnSum&) { NotForward(); }
  void Retype(ConvolutionBackwardData&) { NotForward(); }
  void Retype(ConvolutionBackwardWeights&) { NotForward(); }
  void Retype(CopyIfTaken&) { NotForward(); }
  void Retype(CountTargets&) { NotForward(); }
  void Retype(CrossEntropy&) { NotForward(); }
  void Retype(DivideByNorm&) { NotForward(); }
  void Retype(EmaStep&) { NotForward(); }
  void Retype(EmbeddingBackward&) { NotForward(); }
  void Retype(EmbeddingTablesBackward&) { NotForward(); }
  void Retype(InteractionBackward&) { NotForward(); }
  void Retype(KeepRows&) { NotForward(); }
  void Retype(LambStep&) { NotForward(); }
  void Retype(LayerNormBackward&) { NotForward(); }
  void Retype(MaxPoolBackward&) { NotForward(); }
  void Retype(MeanPoolBackward&) { NotForward(); }
  void Retype(MergeRows&) { NotForward(); }
  void Retype(MuonMomentum&) { NotForward(); }
  void Retype(MuonStep&) { NotForward(); }
  void Retype(NewtonSchulz&) { NotForward(); }
  void Retype(SgdRows&) { NotForward(); }
  void Retype(SgdStep&) { NotForward(); }
  void Retype(SquaredNorm&) { NotForward(); }
  void Retype(Sum&) { NotForward(); }
  void Retype(SwiGluBackward&) { NotForward(); }
  void Retype(Zero&) { NotForward(); }
  static void NotForward() { TY_CHECK(false, "the precision of an op of no forward graph"); }

  const Precision& precision_;
  Graph& graph_;
  absl::flat_hash_map<TensorId, TensorId>& copies_;  // parameter -> its copy
  absl::flat_hash_map<TensorId, TensorId> casts_;    // activation or input -> its other type
  const ResidualStreams streams_;
  const absl::flat_hash_set<TensorId> wide_reads_;
};

}  // namespace

TensorId ApplyPrecision(const Precision& precision, Graph& graph,
                        absl::flat_hash_map<TensorId, TensorId>& copies) {
  return Typing(precision, graph, copies).Run();
}

}  // namespace trainyard::plan
