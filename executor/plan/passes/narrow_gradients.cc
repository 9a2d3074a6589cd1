#include "executor/plan/passes/narrow_gradients.h"

#include <variant>

namespace trainyard::plan {

namespace {

// What a product reads as its weight; kNone: `op` is none.
TensorId WeightOf(const Op& op) {
  if (const auto* product = std::get_if<Matmul>(&op)) return product->b;
  if (const auto* product = std::get_if<AddProduct>(&op)) return product->b;
  return kNone;
}

}  // namespace

absl::flat_hash_set<TensorId> ReadByOneProduct(
    const Graph& forward, const absl::flat_hash_map<TensorId, TensorId>& copies) {
  absl::flat_hash_map<TensorId, int> reads, by_products;
  for (const Op& op : forward.ops) {
    if (const TensorId weight = WeightOf(op); weight != kNone) ++by_products[weight];
    const auto count = [&](TensorId id, Access access) { reads[id] += access != Access::kWrite; };
    VisitOperands(op, count);
  }
  absl::flat_hash_set<TensorId> found;
  for (const auto& [parameter, copy] : copies) {
    if (reads[parameter] == 0 && reads[copy] == 1 && by_products[copy] == 1) {
      found.insert(parameter);
    }
  }
  return found;
}

}  // namespace trainyard::plan
