#include "executor/plan/graph/ops.h"

#include <utility>

namespace trainyard::plan {

Op::Op(const Op& other) = default;
Op::Op(Op&& other) noexcept = default;
Op& Op::operator=(const Op& other) = default;
Op& Op::operator=(Op&& other) noexcept = default;
Op::~Op() = default;

#define TY_FROM(Name) \
  Op::Op(Name op) : OpVariant(std::in_place_type<Name>, std::move(op)) {}
TY_FOR_EACH_PLANNED_OP(TY_FROM)
#undef TY_FROM

void VisitOperands(Op& op, absl::FunctionRef<void(TensorId&, Access)> f) {
  std::visit([&](auto& o) { VisitOperands(o, f); }, static_cast<OpVariant&>(op));
}

void VisitOperands(const Op& op, absl::FunctionRef<void(TensorId, Access)> f) {
  std::visit([&](const auto& o) { VisitOperands(o, f); }, static_cast<const OpVariant&>(op));
}

}  // namespace trainyard::plan
