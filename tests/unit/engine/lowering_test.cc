// An op is declared once, for plans and for devices (kernels/operand.h): what its Fields leave out
// is lost on the way from one to the other.

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "executor/engine/lowering.h"
#include "executor/plan/graph/plan.h"
#include "kernels/device.h"

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

// Parts of a sum of which one is kept for each micro-batch in flight, and the other is computed
// anew.
TEST(Lowering, EachOperandOfAListHasItsPlaceOfTheMicroBatchInFlight) {
  constexpr int64_t kBytes = 128;
  plan::Plan plan;
  for (const char* name : {"kept", "computed anew", "sum"}) {
    plan.tensors.push_back({.name = name, .dims = {2}});
  }
  // Two places in flight, then what any micro-batch has by itself.
  plan.flight_region = {.offset = 0, .bytes = 2 * kBytes};
  plan.flight_bytes = kBytes;
  plan.offsets = {0, 2 * kBytes, 3 * kBytes};
  const std::vector<plan::Op> ops = {plan::AddParts{.parts = {plan::TensorId(0), plan::TensorId(1)},
                                                    .y = plan::TensorId(2),
                                                    .rows = 1,
                                                    .cols = 2}};
  const auto device = kernels::OpenCpu(1).value();
  void* const arena = device->Allocate(4 * kBytes).value();
  const auto at = [&](int64_t offset) {
    return reinterpret_cast<float*>(static_cast<char*>(arena) + offset);
  };
  at(0)[0] = at(0)[1] = 100;
  at(kBytes)[0] = 1, at(kBytes)[1] = 2;
  at(2 * kBytes)[0] = 30, at(2 * kBytes)[1] = 40;
  const auto stream = device->MakeStream();
  const kernels::Kernels kernels = engine::Lower(*device, plan, arena, ops, {.flight = 1}).value();
  for (const kernels::Kernel& kernel : kernels) kernel.launch(*stream);
  EXPECT_EQ(at(3 * kBytes)[0], 31);
  EXPECT_EQ(at(3 * kBytes)[1], 42);
  device->Free(arena);
}

TEST(Lowering, NoFieldOfAnOpIsLost) { ExpectAllFieldsOf(std::type_identity<plan::OpVariant>()); }

}  // namespace
}  // namespace trainyard
