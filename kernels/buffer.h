#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "kernels/element.h"

namespace trainyard::kernels {

enum class DType : uint8_t { kF32, kF64, kI32, kU8, kBF16, kF16 };

inline int64_t SizeOf(DType t) {  // bytes
  switch (t) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
      return 8;
    case DType::kU8:
      return 1;
    case DType::kBF16:
    case DType::kF16:
      return 2;
  }
  std::abort();
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kF32> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::kBF16> {};
template <>
struct DTypeOf<Float16> : std::integral_constant<DType, DType::kF16> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kF64> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<DType, DType::kI32> {};
template <>
struct DTypeOf<uint8_t> : std::integral_constant<DType, DType::kU8> {};

// Where the header of an op names the type E, operands of E are f32, bf16 or f16, all of them of
// the same type; where it names no type, operands are f32. Arithmetic is always fp32; results
// stored as E are rounded to nearest, ties to even.

// A typed place in device memory, borrowed from the arena. Null means that an optional operand is
// absent. The op that takes it declares its shape. The data are dense, row-major and 64-byte
// aligned, unless the op says that it honours the row stride.
struct Buffer {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;  // elements from the start of one row to the next; 0: the rows are dense
  // What lies between the rows, and behind the last one, belongs to this buffer alone, and nobody
  // reads it: an op may leave there what it likes. Otherwise the rows may be columns of a wider
  // matrix.
  bool padded = false;

  explicit operator bool() const { return data != nullptr; }

  Buffer WithRowStride(int64_t stride) const { return {data, dtype, stride}; }
  Buffer WithPaddedRows(int64_t stride) const { return {data, dtype, stride, /*padded=*/true}; }
  // The same buffer from `element` on.
  Buffer From(int64_t element) const {
    return {static_cast<char*>(data) + element * SizeOf(dtype), dtype, row_stride};
  }

  // Aborts when the element type differs: a plan that mixes types up is a bug.
  template <typename T>
  T* As() const {
    if (dtype != DTypeOf<T>::value) std::abort();
    return static_cast<T*>(data);
  }
};

}  // namespace trainyard::kernels
