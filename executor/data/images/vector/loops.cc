#include "executor/data/images/vector/loops.h"

namespace trainyard::data::TRAINYARD_ISA {

namespace {

// Values of a row that are summed in registers.
constexpr int64_t kBlock = 64;

// Sums are kept apart per value and run over the taps in order: what the compiler makes of the
// lanes does not change them.
void BlendRows(const RowBlend& b) {
  int64_t i = 0;
  for (; i + kBlock <= b.n; i += kBlock) {
    float sum[kBlock] = {};
    for (int64_t k = 0; k < b.taps; ++k) {
      const uint8_t* row = b.rows + k * b.stride + i;
      const float weight = b.weights[k];
      for (int64_t j = 0; j < kBlock; ++j) sum[j] += weight * static_cast<float>(row[j]);
    }
    for (int64_t j = 0; j < kBlock; ++j) b.out[i + j] = sum[j];
  }
  for (; i < b.n; ++i) {
    float sum = 0;
    for (int64_t k = 0; k < b.taps; ++k) {
      sum += b.weights[k] * static_cast<float>(b.rows[k * b.stride + i]);
    }
    b.out[i] = sum;
  }
}

// A pixel and one value of its neighbour.
typedef float Four __attribute__((vector_size(16)));
typedef float FourInMemory __attribute__((vector_size(16), aligned(4), may_alias));

Four Load(const float* p) { return *reinterpret_cast<const FourInMemory*>(p); }

// kRows rows at a time share the weights and hide the latency of each other's sums.
template <int64_t kRows>
void BlendPixels3(const PixelBlend& b, int64_t row) {
  const Four scale = {b.scale[0], b.scale[1], b.scale[2], 0};
  const Four offset = {b.offset[0], b.offset[1], b.offset[2], 0};
  const float* rows = b.rows + row * b.stride;
  float* out = b.out + row * 3 * b.width;
  for (int64_t x = 0; x < b.width; ++x) {
    const float* weights = b.weights + x * b.weights_stride;
    const float* from = rows + int64_t{3} * b.first[x];
    Four sum[kRows] = {};
    for (int32_t k = 0; k < b.taps[x]; ++k, from += 3) {
      for (int64_t r = 0; r < kRows; ++r) sum[r] += weights[k] * Load(from + r * b.stride);
    }
    for (int64_t r = 0; r < kRows; ++r) {
      const Four pixel = sum[r] * scale + offset;
      float* to = out + (r * b.width + x) * 3;
      // The fourth value is overwritten by the next pixel.
      if (x + 1 < b.width) {
        *reinterpret_cast<FourInMemory*>(to) = pixel;
      } else {
        for (int c = 0; c < 3; ++c) to[c] = pixel[c];
      }
    }
  }
}

void BlendPixels1(const PixelBlend& b, int64_t row) {
  const float* from = b.rows + row * b.stride;
  for (int64_t x = 0; x < b.width; ++x) {
    float sum = 0;
    for (int32_t k = 0; k < b.taps[x]; ++k) {
      sum += b.weights[x * b.weights_stride + k] * from[b.first[x] + k];
    }
    b.out[row * b.width + x] = sum * b.scale[0] + b.offset[0];
  }
}

void BlendPixels(const PixelBlend& b) {
  int64_t row = 0;
  if (b.channels == 3) {
    for (; row + 4 <= b.height; row += 4) BlendPixels3<4>(b, row);
    for (; row < b.height; ++row) BlendPixels3<1>(b, row);
  }
  for (; row < b.height; ++row) BlendPixels1(b, row);
}

}  // namespace

const ResampleLoops& Loops() {
  static constexpr ResampleLoops kLoops = {.blend_rows = BlendRows, .blend_pixels = BlendPixels};
  return kLoops;
}

}  // namespace trainyard::data::TRAINYARD_ISA
