// An op is declared once, for plans and for devices (kernels/operand.h): what its Fields leave out
// is lost on the way from one to the other.

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "executor/plan/graph/graph.h"

namespace trainyard {
namespace {

// Initializes a member of any type.
struct Anything {
  template <typename T>
  operator T() const;  // NOLINT: never called
};

template <typename Aggregate, size_t... I>
constexpr bool IsMadeOf(std::index_sequence<I...>) {
  return requires { Aggregate{((void)I, Anything())...}; };
}

template <typename Aggregate, size_t kCount = 0>
constexpr size_t MembersOf() {
  if constexpr (IsMadeOf<Aggregate>(std::make_index_sequence<kCount + 1>())) {
    return MembersOf<Aggregate, kCount + 1>();
  } else {
    return kCount;
  }
}

template <typename Field>
const void* AddressOf(const Field& field) {
  if constexpr (kernels::kIsTouched<Field>) {
    return &field.at;
  } else if constexpr (kernels::kIsNatural<Field>) {
    return &field.value;
  } else {
    return &field;
  }
}

template <template <typename> typename Op>
void ExpectAllFields(const Op<plan::TensorId>&) {
  Op<kernels::Buffer> op;
  const auto fields = op.Fields();
  constexpr size_t kFields = std::tuple_size_v<std::decay_t<decltype(fields)>>;
  static_assert(kFields == MembersOf<Op<kernels::Buffer>>());
  const auto places = std::apply(
      [](const auto&... field) { return std::set<const void*>{AddressOf(field)...}; }, fields);
  EXPECT_EQ(places.size(), kFields) << Op<kernels::Buffer>::kName << " names a field twice";
}

template <typename... Ops>
void ExpectAllFieldsOf(std::type_identity<std::variant<Ops...>>) {
  (ExpectAllFields(Ops()), ...);
}

TEST(Lowering, NoFieldOfAnOpIsLost) { ExpectAllFieldsOf(std::type_identity<plan::OpVariant>()); }

}  // namespace
}  // namespace trainyard
