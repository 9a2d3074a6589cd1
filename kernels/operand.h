#pragma once

// How an op is declared, once for a plan and for devices: a struct over the type T of its operands,
// which are places in device memory here (Buffer) and ids of tensors in a plan. It lists its fields
// with TY_FIELDS. Read, Write and Update say how an operand is touched, what its elements are (f32
// unless it says so) and whether it may be absent; whole numbers are sizes of at least 1, unless
// they MayBeZero.
//
//   template <typename T>
//   struct AddOf {
//     static constexpr const char* kName = "add";
//     T a, b, y;
//     int64_t n = 0;
//     TY_FIELDS(Read(a, E), Read(b, E), Write(y, E), n)
//   };
//
// That is what every back end checks before it prepares an op (check.h). What else must hold of an
// op it tells by two methods, where it has them; both return null if nothing is wrong:
//   const char* Problem() const;      what is wrong with its sizes and operands
//   const char* Unsupported() const;  for which types there is no kernel

#include <cstdint>
#include <tuple>
#include <utility>

#include "kernels/buffer.h"

namespace trainyard::kernels {

// How an op touches an operand.
enum class Access { kRead, kWrite, kUpdate };  // kUpdate: reads and writes

// What the elements of an operand are, and whether it may be absent.
struct OperandType {
  enum Elements : uint8_t {
    kF32,
    kE,       // E of buffer.h
    kEOrF32,  // E or f32; where no operand is of kE, E is the first of these that is not f32
    k16Bits,  // bf16 or f16
    kF64,
    kI32,
    kU8,
    kAny,
  };
  Elements elements = kF32;
  bool optional = false;
};

namespace operand_types {
inline constexpr OperandType F32{OperandType::kF32}, E{OperandType::kE},
    EOrF32{OperandType::kEOrF32}, Narrow{OperandType::k16Bits}, F64{OperandType::kF64},
    I32{OperandType::kI32}, U8{OperandType::kU8}, Any{OperandType::kAny};
inline constexpr OperandType State = Any;  // a StepState

constexpr OperandType OptionalIf(bool condition, OperandType type = F32) {
  type.optional = condition;
  return type;
}
constexpr OperandType Optional(OperandType type = F32) { return OptionalIf(true, type); }
}  // namespace operand_types

// An operand of an op, or a list of them, and how the op touches it.
template <typename T>
struct Touched {
  T& at;
  Access access;
  OperandType type;
  // Rows of the operand may lie apart: the op honours the buffer's row stride.
  bool takes_row_stride = false;
};

template <typename T>
constexpr Touched<T> Touch(T& at, Access access, OperandType type = {}) {
  return {at, access, type};
}
template <typename T>
constexpr Touched<T> Read(T& at, OperandType type = {}) {
  return {at, Access::kRead, type};
}
template <typename T>
constexpr Touched<T> Write(T& at, OperandType type = {}) {
  return {at, Access::kWrite, type};
}
template <typename T>
constexpr Touched<T> Update(T& at, OperandType type = {}) {
  return {at, Access::kUpdate, type};
}
template <typename T>
constexpr Touched<T> WriteOrAdd(T& at, bool accumulate, OperandType type = {}) {
  return {at, accumulate ? Access::kUpdate : Access::kWrite, type};
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

// A whole number that may be 0.
template <typename T>
struct Natural {
  T& value;
};
template <typename T>
constexpr Natural<T> MayBeZero(T& value) {
  return {value};
}
template <typename T>
inline constexpr bool kIsNatural = false;
template <typename T>
inline constexpr bool kIsNatural<Natural<T>> = true;

// Holds operands (Touched) by value and other fields by reference.
template <typename... Fields>
constexpr std::tuple<Fields...> FieldsOf(Fields&&... fields) {
  return {std::forward<Fields>(fields)...};
}

#define TY_FIELDS(...)                                    \
  static constexpr const char* kFieldList = #__VA_ARGS__; \
  constexpr auto Fields() {                               \
    using namespace operand_types;                        \
    return FieldsOf(__VA_ARGS__);                         \
  }                                                       \
  constexpr auto Fields() const {                         \
    using namespace operand_types;                        \
    return FieldsOf(__VA_ARGS__);                         \
  }

// Type is the type of an operand that is a list of tables of one width, in ops over T.
template <typename T>
struct TableListFor;

}  // namespace trainyard::kernels
