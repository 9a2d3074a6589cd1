#pragma once

// The vocabulary of a graph: the ops of kernels/ops/, over ids of tensors. Their meaning, and the
// shapes of their operands, are those of kernels/ops/. Sizes follow from the tensors and are kept
// in the ops so that a plan is complete in itself.

#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

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

// Calls f(TensorId&, Access) for each operand of `op` that is present.
template <typename O, typename F>
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
using Op = VariantOf<void TY_FOR_EACH_PLANNED_OP(TY_AND)>;
#undef TY_AND

}  // namespace trainyard::plan
