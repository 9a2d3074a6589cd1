#pragma once

// How an op is declared, once for plans and for devices: a struct template over the type T of its
// operands. For devices T is Buffer (a place in device memory), for plans the id of a tensor.
// TY_FIELDS lists the fields: each operand in Read, Write or Update, which say how the op accesses
// it, and every other field as it is.
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
  // Rows of the operand may lie apart: the op honours the buffer's row stride.
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

// Holds operands (Touched) by value and other fields by reference.
template <typename... Fields>
constexpr std::tuple<Fields...> FieldsOf(Fields&&... fields) {
  return {std::forward<Fields>(fields)...};
}

#define TY_FIELDS(...)                                      \
  constexpr auto Fields() { return FieldsOf(__VA_ARGS__); } \
  constexpr auto Fields() const { return FieldsOf(__VA_ARGS__); }

// Type is the type of an operand that is a list of tables of one width, in ops over T.
template <typename T>
struct TableListFor;

}  // namespace trainyard::kernels
