#include "executor/plan/ops/typing.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "executor/plan/ops/list.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

const char* SuffixOf(ElementType type) {
  return type == ElementType::kBF16 ? ".bf16" : type == ElementType::kF16 ? ".f16" : ".f32";
}

absl::flat_hash_set<TensorId> ResidualStreams(const std::vector<Op>& ops) {
  absl::flat_hash_set<TensorId> tensors;
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    if (const auto* sum = std::get_if<Add>(&*op)) tensors.insert({sum->a, sum->b});
    std::visit(
        [&]<typename O>(const O& o) {
          if constexpr (Rules<O>::kInForwardGraphs) {
            if constexpr (Rules<O>::kKeepsResidualStream) {
              if (tensors.contains(o.y)) tensors.insert(o.x);
            }
          }
        },
        *op);
  }
  return tensors;
}

absl::flat_hash_set<TensorId> WideReads(const std::vector<Op>& ops) {
  absl::flat_hash_set<TensorId> tensors;
  for (const Op& op : ops) {
    if (std::visit([]<typename O>(const O&) { return Rules<O>::kReadsNarrow; }, op)) continue;
    VisitOperands(op, [&](TensorId id, Access access) {
      if (access == Access::kRead) tensors.insert(id);
    });
  }
  return tensors;
}

}  // namespace

Typing::Typing(const Precision& precision, Graph& graph,
               absl::flat_hash_map<TensorId, TensorId>& copies)
    : precision_(precision),
      graph_(graph),
      copies_(copies),
      streams_(ResidualStreams(graph.ops)),
      wide_reads_(WideReads(graph.ops)) {}

void Typing::Read(TensorId& id, ElementType type) {
  if (id == kNone || TypeOf(id) == type) return;
  const bool weight = graph_[id].kind == TensorKind::kParameter;
  auto& versions = weight ? copies_ : casts_;
  if (const auto found = versions.find(id); found != versions.end()) {
    TY_CHECK(TypeOf(found->second) == type, graph_[id].name, " in a third type");
    id = found->second;
    return;
  }
  Tensor tensor = graph_[id];
  tensor.name = absl::StrCat(tensor.name, SuffixOf(type));
  tensor.type = type;
  tensor.kind = weight ? TensorKind::kWeightCopy : TensorKind::kActivation;
  tensor.parts.clear();
  tensor.shard.reset();
  const TensorId version = graph_.Add(std::move(tensor));
  if (!weight) graph_.ops.push_back(Cast{.x = id, .y = version, .n = graph_[id].elements()});
  versions[id] = version;
  id = version;
}

}  // namespace trainyard::plan
