#include "executor/plan/passes/precision.h"

#include <utility>
#include <variant>
#include <vector>

#include "executor/plan/ops/list.h"
#include "storage/base/status.h"

namespace trainyard::plan {

TensorId ApplyPrecision(const Precision& precision, Graph& graph,
                        absl::flat_hash_map<TensorId, TensorId>& copies) {
  Typing typing(precision, graph, copies);
  for (Op& op : std::exchange(graph.ops, {})) {
    std::visit(
        [&]<typename O>(O& o) {
          if constexpr (Rules<O>::kInForwardGraphs) {
            Rules<O>::Retype(o, typing);
          } else {
            TY_CHECK(false, Rules<O>::Name(o), " is no op of a forward graph");
          }
        },
        op);
    graph.ops.push_back(std::move(op));
  }
  TensorId logits = precision.logits;
  if (precision.of_logits == ElementType::kF32) typing.ReadWide(logits);
  return logits;
}

}  // namespace trainyard::plan
