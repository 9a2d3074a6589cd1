#pragma once

// The inner loops of resampling. Compiled once per instruction set, each time in its own namespace
// TRAINYARD_ISA (as kernels/cpu/vector), and without fused multiply-add, so that all give the same
// bits. Nothing with inline functions is included here: the linker would keep one copy for all.

#include <cstdint>

namespace trainyard::data {

// out[i] = sum over k of weights[k] * rows[k * stride + i], for n values.
struct RowBlend {
  const uint8_t* rows = nullptr;
  int64_t stride = 0;
  const float* weights = nullptr;
  int64_t taps = 0;
  int64_t n = 0;
  float* out = nullptr;
};

// out[y][x][c] = sum over k of weights[x][k] * rows[y][first[x] + k][c], to the nearest byte,
// halves up, for [height, width] pixels of 1 or 3 channels; k runs to taps[x]. The weights are not
// negative and add up to 1, the rows are in [0, 255]. Strides are in values; a row has room for one
// value more than it has.
struct PixelBlend {
  const float* rows = nullptr;
  int64_t stride = 0;
  int64_t height = 0;
  const int32_t* first = nullptr;
  const int32_t* taps = nullptr;
  const float* weights = nullptr;
  int64_t weights_stride = 0;
  int64_t width = 0;
  int64_t channels = 3;
  uint8_t* out = nullptr;
};

struct ResampleLoops {
  void (*blend_rows)(const RowBlend&);
  void (*blend_pixels)(const PixelBlend&);
};

namespace avx512 {
const ResampleLoops& Loops();
}
namespace avx2 {
const ResampleLoops& Loops();
}
namespace baseline {
const ResampleLoops& Loops();
}

}  // namespace trainyard::data
