#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

typedef uint8_t VecU8 __attribute__((vector_size(kLanes)));

// The channels [0, n) of one window; x is its first pixel, rows of the image `row` floats apart.
TRAINYARD_INLINE void PoolWindow(const float* x, int64_t row, int64_t channels, int64_t window,
                                 int64_t n, float* y, uint8_t* index) {
  VecF best = Splat(-__builtin_inff());
  VecI place{};
  int32_t k = 0;
  for (int64_t i = 0; i < window; ++i) {
    for (int64_t j = 0; j < window; ++j, ++k) {
      const float* from = x + i * row + j * channels;
      const VecF v = n == kLanes ? Load(from) : LoadPart(from, n);
      // NaN is taken and stays, as in PyTorch.
      const VecI larger = (v > best) | (v != v);
      best = larger ? v : best;
      place = larger ? VecI{} + k : place;
    }
  }
  uint8_t places[kLanes];
  const VecU8 bytes = __builtin_convertvector(place, VecU8);
  __builtin_memcpy(places, &bytes, kLanes);
  if (n == kLanes) {
    Store(y, best);
    __builtin_memcpy(index, places, kLanes);
    return;
  }
  StorePart(y, best, n);
  for (int64_t c = 0; c < n; ++c) index[c] = places[c];
}

void MaxPool(const MaxPoolRows& r) {
  const int64_t row = r.width * r.channels;
  const int64_t out_width = r.width / r.window;
  for (int64_t i = 0; i < r.rows; ++i) {
    for (int64_t j = 0; j < out_width; ++j) {
      const float* x = r.x + i * r.window * row + j * r.window * r.channels;
      const int64_t at = (i * out_width + j) * r.channels;
      int64_t c = 0;
      for (; c + kLanes <= r.channels; c += kLanes) {
        PoolWindow(x + c, row, r.channels, r.window, kLanes, r.y + at + c, r.index + at + c);
      }
      if (c < r.channels) {
        PoolWindow(x + c, row, r.channels, r.window, r.channels - c, r.y + at + c,
                   r.index + at + c);
      }
    }
  }
}

// Pixels of dx are written window by window; those that no window covers are set to 0 by the
// caller.
void MaxPoolBackwardRun(const MaxPoolBackwardRows& r) {
  const int64_t row = r.width * r.channels;
  const int64_t out_width = r.width / r.window;
  for (int64_t i = 0; i < r.rows; ++i) {
    for (int64_t j = 0; j < out_width; ++j) {
      float* dx = r.dx + i * r.window * row + j * r.window * r.channels;
      const int64_t at = (i * out_width + j) * r.channels;
      const float* __restrict dy = r.dy + at;
      const uint8_t* __restrict index = r.index + at;
      int32_t k = 0;
      for (int64_t wi = 0; wi < r.window; ++wi) {
        for (int64_t wj = 0; wj < r.window; ++wj, ++k) {
          float* __restrict to = dx + wi * row + wj * r.channels;
          for (int64_t c = 0; c < r.channels; ++c) to[c] = index[c] == k ? dy[c] : 0.0f;
        }
      }
    }
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
