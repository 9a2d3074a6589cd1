#pragma once

// The vocabulary of a graph: the ops of kernels/ops/, over ids of tensors. Their meaning, and the
// shapes of their operands, are those of kernels/ops/. Sizes follow from the tensors and are kept
// in the ops so that a plan is complete in itself.

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/ops/list.h"

namespace trainyard::plan {

// A place in Graph::tensors; -1: an optional operand that is absent.
struct TensorId {
  int32_t index = -1;

  constexpr TensorId() = default;
  constexpr TensorId(int32_t place) : index(place) {}   // NOLINT: an id is a number
  constexpr operator int32_t() const { return index; }  // NOLINT: likewise

  template <typename H>
  friend H AbslHashValue(H hash, TensorId id) {
    return H::combine(std::move(hash), id.index);
  }
};
inline constexpr TensorId kNone;

}  // namespace trainyard::plan

namespace trainyard::kernels {

template <>
struct TableListFor<plan::TensorId> {
  using Type = std::vector<plan::TensorId>;
};

}  // namespace trainyard::kernels

namespace trainyard::plan {

using kernels::Access;
using kernels::ActivationKind;
using kernels::ConvolutionShape;
using kernels::PoolShape;

// Calls f(TensorId&, Access) for each operand of `op` that is present; of a constant op, by value.
template <typename O, typename F>
requires requires(O& op) { op.Fields(); }
void VisitOperands(O& op, F&& f) {
  const auto visit = [&f](const auto& field) {
    if constexpr (kernels::kIsTouched<std::decay_t<decltype(field)>>) {
      if constexpr (std::is_convertible_v<decltype(field.at), TensorId>) {
        if (field.at != kNone) f(field.at, field.access);
      } else {
        for (auto& id : field.at) f(id, field.access);
      }
    }
  };
  std::apply([&visit](const auto&... fields) { (visit(fields), ...); }, op.Fields());
}

#define TY_IN_A_PLAN(Name) using Name = kernels::Name##Of<TensorId>;
TY_FOR_EACH_PLANNED_OP(TY_IN_A_PLAN)
#undef TY_IN_A_PLAN

template <typename, typename... Ops>
using VariantOf = std::variant<Ops...>;
#define TY_AND(Name) , Name
using OpVariant = VariantOf<void TY_FOR_EACH_PLANNED_OP(TY_AND)>;
#undef TY_AND

// One op of a plan, whichever it is: std::visit and std::get_if take it. What copies, moves and
// ends it is compiled once, in ops.cc, and not in every file that has a list of ops.
struct Op : OpVariant {
  Op(const Op& other);
  Op(Op&& other) noexcept;
  Op& operator=(const Op& other);
  Op& operator=(Op&& other) noexcept;
  ~Op();
#define TY_FROM(Name) Op(Name op);  // NOLINT: each of them is an op
  TY_FOR_EACH_PLANNED_OP(TY_FROM)
#undef TY_FROM
};

// For each operand of `op` that is present, in the order of its fields.
void VisitOperands(Op& op, absl::FunctionRef<void(TensorId&, Access)> f);
void VisitOperands(const Op& op, absl::FunctionRef<void(TensorId, Access)> f);

}  // namespace trainyard::plan
