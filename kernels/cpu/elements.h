#pragma once

// From an element type to the loops that are written for it, and from a loop to a kernel.

#include <tuple>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"
#include "kernels/for_element.h"

namespace trainyard::kernels {

template <typename T>
const ElementLoops<T>& LoopsOf(const VectorTable& table) {
  return std::get<const ElementLoops<T>&>(std::tie(table.f32, table.bf16, table.f16));
}

// Calls run(operands + begin..., count) for runs of [0, n).
template <typename Run, typename... T>
Kernel Elementwise(int threads, int64_t n, Run* run, T*... operands) {
  return Kernel{[=](Stream&) {
    ParallelRuns(threads, n, kSerialElements,
                 [&](int64_t begin, int64_t end) { run(operands + begin..., end - begin); });
  }};
}

}  // namespace trainyard::kernels
