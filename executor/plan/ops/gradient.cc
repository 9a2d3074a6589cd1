#include "executor/plan/ops/gradient.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "executor/plan/ops/list.h"
#include "storage/base/status.h"

namespace trainyard::plan {

std::vector<size_t> AppendBackward(Graph& graph,
                                   const absl::flat_hash_map<TensorId, TensorId>& loss_gradient,
                                   const absl::flat_hash_map<TensorId, TensorId>& gradients,
                                   bool accumulate,
                                   const absl::flat_hash_map<TensorId, RowGradient>& rows,
                                   int64_t token_cuts) {
  return Gradient(graph, gradients, accumulate, rows, token_cuts).Run(loss_gradient);
}

// `pending_[t]` is the gradient of t gathered so far by the ops after the present one; it is
// complete when the op that made t is reached.
std::vector<size_t> Gradient::Run(const absl::flat_hash_map<TensorId, TensorId>& loss_gradient) {
  std::vector<Op> forward = graph_.ops;
  std::vector<size_t> gradient_of;
  FindDependent(forward);
  for (const auto& [tensor, gradient] : loss_gradient) pending_[tensor] = gradient;
  for (size_t i = forward.size(); i-- > 0;) {
    std::visit(
        [this]<typename O>(const O& o) {
          if constexpr (Rules<O>::kInForwardGraphs) {
            const TensorId dy = Consume(Rules<O>::ResultOf(o));
            if (dy != kNone) Rules<O>::Differentiate(o, dy, *this);
          } else {
            TY_CHECK(false, Rules<O>::Name(o), " is no op of a forward graph");
          }
        },
        forward[i]);
    gradient_of.resize(graph_.ops.size() - forward.size(), i);
  }
  TY_CHECK(pending_.empty(), pending_.size(), " gradients reached no op that made their tensor");
  return gradient_of;
}

void Gradient::FindDependent(const std::vector<Op>& forward) {
  for (const Op& op : forward) {
    bool depends = false;
    VisitOperands(op, [&](TensorId id, Access access) {
      if (access == Access::kRead)
        depends |= gradients_.contains(id) || rows_.contains(id) || Depends(id);
    });
    if (!depends) continue;
    VisitOperands(op, [&](TensorId id, Access access) {
      if (access != Access::kRead) dependent_.insert(id);
    });
  }
}

TensorId Gradient::Consume(TensorId y) {
  const auto found = pending_.find(y);
  if (found == pending_.end()) return kNone;
  consumed_ = found->second;
  pending_.erase(found);
  return consumed_;
}

TensorId Gradient::NewLike(TensorId x) {
  Tensor tensor = graph_[x];
  tensor.name = absl::StrCat("d(", tensor.name, ")");
  tensor.kind = TensorKind::kActivation;
  return graph_.Add(std::move(tensor));
}

TensorId Gradient::NewOf(TensorId x, std::vector<int64_t> dims) {
  return graph_.Add({.name = absl::StrCat("d(", graph_[x].name, ")"), .dims = std::move(dims)});
}

TensorId Gradient::InTypeOf(TensorId x, TensorId gradient) {
  if (graph_[x].type == graph_[gradient].type) return gradient;
  Tensor tensor = graph_[gradient];
  tensor.type = graph_[x].type;
  const TensorId y = graph_.Add(std::move(tensor));
  Emit(Cast{.x = gradient, .y = y, .n = graph_[y].elements()});
  return y;
}

void Gradient::Accumulate(TensorId x, TensorId gradient) {
  if (!Depends(x)) return;
  const auto [at, first] = pending_.try_emplace(x, gradient);
  if (first) return;
  const TensorId sum = NewLike(x);
  Emit(Add{.a = at->second, .b = gradient, .y = sum, .n = graph_[x].elements()});
  pending_[x] = sum;
}

// Whether only one tensor waits for `gradient` and the op at hand does not read it, so that the op
// may add into it: all others that read it have run.
bool Gradient::Exclusive(TensorId gradient) const {
  if (gradient == consumed_) return false;
  int holders = 0;
  for (const auto& [tensor, held] : pending_) holders += held == gradient;
  return holders == 1;
}

TensorId Gradient::OfParameter(TensorId parameter) const {
  const auto found = gradients_.find(parameter);
  return found == gradients_.end() ? kNone : found->second;
}

bool Gradient::ParameterAccumulates(TensorId parameter) {
  const bool first = written_.insert(OfParameter(parameter)).second;
  return accumulate_ || !first;
}

bool Gradient::ParametersAccumulate(TensorId one, TensorId other) {
  if (!IsTrained(one)) return ParameterAccumulates(other);
  const bool accumulate = ParameterAccumulates(one);
  TY_CHECK(!IsTrained(other) || ParameterAccumulates(other) == accumulate, graph_[one].name,
           " goes with another parameter");
  return accumulate;
}

void Gradient::SumRows(TensorId dy, TensorId bias, int64_t rows, int64_t cols, int64_t cuts) {
  if (!IsTrained(bias)) return;
  const bool accumulate = ParameterAccumulates(bias) || graph_[bias].elements() > cols;
  Emit(ColumnSum{.x = dy,
                 .y = OfParameter(bias),
                 .rows = rows,
                 .cols = cols,
                 .accumulate = accumulate,
                 .cuts = cuts});
}

const RowGradient* Gradient::OfRows(TensorId first_table) const {
  const auto found = rows_.find(first_table);
  return found == rows_.end() ? nullptr : &found->second;
}

}  // namespace trainyard::plan
