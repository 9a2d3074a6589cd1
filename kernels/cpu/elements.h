#pragma once

// From an element type to the loops that are written for it.

#include <tuple>

#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"
#include "kernels/for_element.h"

namespace trainyard::kernels {

template <typename T>
const ElementLoops<T>& LoopsOf(const VectorTable& table) {
  return std::get<const ElementLoops<T>&>(std::tie(table.f32, table.bf16, table.f16));
}

}  // namespace trainyard::kernels
