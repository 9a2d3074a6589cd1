#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

typedef uint8_t VecU8 __attribute__((vector_size(kLanes)));

// The part [begin, end) of a window that lies within the image.
struct Span {
  int64_t begin, end;
};

TRAINYARD_INLINE Span Within(int64_t first, int64_t window, int64_t size) {
  return {first < 0 ? -first : 0, first + window > size ? size - first : window};
}

// The channels [0, n) of one window; x is the pixel at its corner, which may lie outside the image.
TRAINYARD_INLINE void PoolWindow(const MaxPoolRow& r, const float* x, Span rows, Span cols,
                                 int64_t n, float* y, uint8_t* index) {
  VecF best = Splat(-__builtin_inff());
  VecI place = VecI{} + static_cast<int32_t>(rows.begin * r.window + cols.begin);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    for (int64_t j = cols.begin; j < cols.end; ++j) {
      const float* from = x + (i * r.width + j) * r.channels;
      const VecF v = n == kLanes ? Load(from) : LoadPart(from, n);
      // NaN is taken and stays, as in PyTorch.
      const VecI larger = (v > best) | (v != v);
      best = larger ? v : best;
      place = larger ? VecI{} + static_cast<int32_t>(i * r.window + j) : place;
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

void MaxPoolOfRow(const MaxPoolRow& r) {
  const int64_t first_row = r.row * r.stride - r.pad;
  const Span rows = Within(first_row, r.window, r.height);
  for (int64_t j = 0; j < r.out_width; ++j) {
    const int64_t first_col = j * r.stride - r.pad;
    const Span cols = Within(first_col, r.window, r.width);
    const float* x = r.x + (first_row * r.width + first_col) * r.channels;
    float* y = r.y + (r.row * r.out_width + j) * r.channels;
    uint8_t* index = r.index + (r.row * r.out_width + j) * r.channels;
    int64_t c = 0;
    for (; c + kLanes <= r.channels; c += kLanes) {
      PoolWindow(r, x + c, rows, cols, kLanes, y + c, index + c);
    }
    if (c < r.channels) PoolWindow(r, x + c, rows, cols, r.channels - c, y + c, index + c);
  }
}

// The windows [begin, end) that cover the place `at` of a padded row.
TRAINYARD_INLINE Span Covering(int64_t at, int64_t window, int64_t stride, int64_t count) {
  const int64_t begin = at < window ? 0 : (at - window) / stride + 1;
  const int64_t end = at / stride + 1;
  return {begin, end < count ? end : count};
}

// Each pixel gathers from the windows that cover it, in order.
void MaxPoolBackwardOfRow(const MaxPoolBackwardRow& r) {
  const int64_t h = r.row + r.pad;
  const Span rows = Covering(h, r.window, r.stride, r.out_height);
  for (int64_t j = 0; j < r.width; ++j) {
    const int64_t w = j + r.pad;
    const Span cols = Covering(w, r.window, r.stride, r.out_width);
    float* __restrict dx = r.dx + (r.row * r.width + j) * r.channels;
    bool first = true;
    for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
      for (int64_t ow = cols.begin; ow < cols.end; ++ow) {
        const auto place =
            static_cast<int32_t>((h - oh * r.stride) * r.window + (w - ow * r.stride));
        const int64_t from = (oh * r.out_width + ow) * r.channels;
        const float* __restrict dy = r.dy + from;
        const uint8_t* __restrict index = r.index + from;
        if (first) {
          for (int64_t c = 0; c < r.channels; ++c) dx[c] = index[c] == place ? dy[c] : 0.0f;
        } else {
          for (int64_t c = 0; c < r.channels; ++c) dx[c] += index[c] == place ? dy[c] : 0.0f;
        }
        first = false;
      }
    }
    if (!first) continue;
    for (int64_t c = 0; c < r.channels; ++c) dx[c] = 0;  // no window covers it
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
