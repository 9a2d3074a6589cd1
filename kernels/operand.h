#pragma once

// How an op is declared, once for a plan and for devices: a struct over the type T of its operands,
// which are places in device memory here (Buffer) and ids of tensors in a plan. It lists what it
// consists of with TY_FIELDS: operands as Read, Write or Update say how they are touched,
// everything else as it is.
//
//   template <typename T>
//   struct AddOf {
//     static constexpr const char* kName = "add";
//     T a, b, y;
//     int64_t n = 0;
//     TY_FIELDS(Read(a), Read(b), Write(y), n)
//   };

#include <tuple>
#include <utility>

#include "kernels/buffer.h"

namespace trainyard::kernels {

// How an op touches an operand.
enum class Access { kRead, kWrite, kUpdate };  // kUpdate: reads and writes

// An operand of an op, or a list of them, and how the op touches it.
template <typename T>
struct Touched {
  T& at;
  Access access;
  // Its rows may lie apart: the op goes by the row stride of the buffer.
  bool takes_row_stride = false;
};

template <typename T>
constexpr Touched<T> Touch(T& at, Access access) {
  return {at, access};
}
template <typename T>
constexpr Touched<T> Read(T& at) {
  return {at, Access::kRead};
}
template <typename T>
constexpr Touched<T> Write(T& at) {
  return {at, Access::kWrite};
}
template <typename T>
constexpr Touched<T> Update(T& at) {
  return {at, Access::kUpdate};
}
template <typename T>
constexpr Touched<T> WriteOrAdd(T& at, bool accumulate) {
  return {at, accumulate ? Access::kUpdate : Access::kWrite};
}
template <typename T>
constexpr Touched<T> WithRowStride(Touched<T> operand) {
  operand.takes_row_stride = true;
  return operand;
}

template <typename T>
inline constexpr bool kIsTouched = false;
template <typename T>
inline constexpr bool kIsTouched<Touched<T>> = true;

// Operands as they are, other fields as references.
template <typename... Fields>
constexpr std::tuple<Fields...> FieldsOf(Fields&&... fields) {
  return {std::forward<Fields>(fields)...};
}

#define TY_FIELDS(...)                                      \
  constexpr auto Fields() { return FieldsOf(__VA_ARGS__); } \
  constexpr auto Fields() const { return FieldsOf(__VA_ARGS__); }

// The type of a list of tables of one width whose operands are of type T.
template <typename T>
struct TableListFor;

}  // namespace trainyard::kernels
