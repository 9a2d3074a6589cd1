#pragma once

// From an element type to the loops that are written for it.

#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"
#include "kernels/for_element.h"

namespace trainyard::kernels {

template <typename T>
const ElementLoops<T>& LoopsOf(const VectorTable& table);
template <>
inline const ElementLoops<float>& LoopsOf<float>(const VectorTable& table) {
  return table.f32;
}
template <>
inline const ElementLoops<BFloat16>& LoopsOf<BFloat16>(const VectorTable& table) {
  return table.bf16;
}
template <>
inline const ElementLoops<Float16>& LoopsOf<Float16>(const VectorTable& table) {
  return table.f16;
}

}  // namespace trainyard::kernels
