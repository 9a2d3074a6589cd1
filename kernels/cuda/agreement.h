#pragma once

// Whether two ways to compute the same thing agree, on the GPU that they are for.

#include <cstdint>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// `n` elements that were computed: f32, bf16 or f16.
struct Computed {
  Buffer x;
  int64_t n = 0;
};

// Reads what is compared: the first and the last half million elements of each result. Waits for
// the stream. After a fault the numbers are NaN, which agree with nothing.
std::vector<std::vector<float>> Read(Stream& stream, const std::vector<Computed>& results);

// |a - b| / |b| by Euclidean norm, the largest over all results; infinity where a number is not
// finite.
double Distance(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b);

}  // namespace trainyard::kernels::cuda
