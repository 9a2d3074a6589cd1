#include "executor/plan/passes/align_rows.h"

#include <cstdint>
#include <variant>
#include <vector>

namespace trainyard::plan {

namespace {

// Whether one op touches `id`, a product that could leave its rows apart. With a weight [width,
// classes] the gradient would be read as the product's b, whose rows are dense.
bool OnlyMadeByProduct(TensorId id, int64_t columns, std::vector<Op> ops) {
  int touched = 0;
  bool made = false;
  for (Op& op : ops) {
    VisitOperands(op, [&](TensorId other, Access) { touched += other == id; });
    const auto* const product = std::get_if<Matmul>(&op);
    made |= product != nullptr && product->c == id && product->n == columns &&
            product->transpose_b && !product->accumulate;
  }
  return made && touched == 1;
}

}  // namespace

void AlignLogits(TensorId logits, Graph& graph) {
  Tensor& tensor = graph.tensors[logits];
  const int64_t columns = tensor.dims.back();
  const int64_t aligned = (columns + kRowGrain - 1) / kRowGrain * kRowGrain;
  if (columns % kAlignedColumns == 0 || (aligned - columns) * kMostPadding > columns) return;
  if (OnlyMadeByProduct(logits, columns, graph.ops)) tensor.row_stride = aligned;
}

}  // namespace trainyard::plan
