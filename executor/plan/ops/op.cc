#include "executor/plan/ops/op.h"

#include <variant>

#include "executor/plan/ops/list.h"

namespace trainyard::plan {

const char* OpName(const Op& op) {
  return std::visit([]<typename O>(const O& o) { return Rules<O>::Name(o); }, op);
}

double Flops(const Op& op) {
  return std::visit([]<typename O>(const O& o) -> double { return Rules<O>::Flops(o); }, op);
}

int64_t CpuScratchBytes(const std::vector<Tensor>& tensors, const Op& op) {
  return std::visit([&]<typename O>(const O& o) { return Rules<O>::ScratchOf(o, tensors).cpu; },
                    op);
}

int64_t GpuScratchBytes(const std::vector<Tensor>& tensors, const Op& op) {
  return std::visit([&]<typename O>(const O& o) { return Rules<O>::ScratchOf(o, tensors).gpu; },
                    op);
}

std::vector<std::pair<TensorId, TensorId>> InPlacePairs(const Op& op) {
  return std::visit([]<typename O>(const O& o) -> InPlace { return Rules<O>::InPlacePairs(o); },
                    op);
}

Op RecomputedOp(const Op& op) {
  return std::visit([]<typename O>(const O& o) -> Op { return Rules<O>::Recomputed(o); }, op);
}

}  // namespace trainyard::plan
