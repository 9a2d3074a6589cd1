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

typedef int32_t FourInts __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef uint8_t FourBytes __attribute__((vector_size(4)));
typedef uint8_t FourBytesInMemory __attribute__((vector_size(4), aligned(1), may_alias));

// Of values in [0, 255], give or take the rounding of their sum.
FourBytes Rounded(Four v) {
  const FourInts whole = __builtin_convertvector(v + 0.5f, FourInts);
  const auto bytes = reinterpret_cast<Bytes>(whole);
  return __builtin_shufflevector(bytes, bytes, 0, 4, 8, 12);
}
uint8_t Rounded(float v) { return static_cast<uint8_t>(static_cast<int32_t>(v + 0.5f)); }

Four Load(const float* p) { return *reinterpret_cast<const FourInMemory*>(p); }

// kRows rows at a time share the weights and hide the latency of each other's sums.
template <int64_t kRows>
void BlendPixels3(const PixelBlend& b, int64_t row) {
  const float* rows = b.rows + row * b.stride;
  uint8_t* out = b.out + row * 3 * b.width;
  for (int64_t x = 0; x < b.width; ++x) {
    const float* weights = b.weights + x * b.weights_stride;
    const float* from = rows + int64_t{3} * b.first[x];
    Four sum[kRows] = {};
    for (int32_t k = 0; k < b.taps[x]; ++k, from += 3) {
      for (int64_t r = 0; r < kRows; ++r) sum[r] += weights[k] * Load(from + r * b.stride);
    }
    for (int64_t r = 0; r < kRows; ++r) {
      const FourBytes pixel = Rounded(sum[r]);
      uint8_t* to = out + (r * b.width + x) * 3;
      // The fourth byte is overwritten by the next pixel.
      if (x + 1 < b.width) {
        *reinterpret_cast<FourBytesInMemory*>(to) = pixel;
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
    b.out[row * b.width + x] = Rounded(sum);
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
