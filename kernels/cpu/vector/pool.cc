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
template <typename T>
TRAINYARD_INLINE void PoolWindow(const MaxPoolRow<T>& r, const T* x, Span rows, Span cols,
                                 int64_t n, T* y, uint8_t* index) {
  VecF best = Splat(-__builtin_inff());
  VecI place = VecI{} + static_cast<int32_t>(rows.begin * r.window + cols.begin);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    for (int64_t j = cols.begin; j < cols.end; ++j) {
      const VecF v = LoadUpTo(x + (i * r.width + j) * r.channels, n);
      // NaN is taken and stays, as in PyTorch.
      const VecI larger = (v > best) | (v != v);
      best = larger ? v : best;
      place = larger ? VecI{} + static_cast<int32_t>(i * r.window + j) : place;
    }
  }
  uint8_t places[kLanes];
  const VecU8 bytes = __builtin_convertvector(place, VecU8);
  __builtin_memcpy(places, &bytes, kLanes);
  StoreUpTo(y, best, n);
  if (n == kLanes) {
    __builtin_memcpy(index, places, kLanes);
  } else {
    for (int64_t c = 0; c < n; ++c) index[c] = places[c];
  }
}

template <typename T>
void MaxPoolOfRow(const MaxPoolRow<T>& r) {
  const int64_t first_row = r.row * r.stride - r.pad;
  const Span rows = Within(first_row, r.window, r.height);
  for (int64_t j = 0; j < r.out_width; ++j) {
    const int64_t first_col = j * r.stride - r.pad;
    const Span cols = Within(first_col, r.window, r.width);
    const T* x = r.x + (first_row * r.width + first_col) * r.channels;
    T* y = r.y + (r.row * r.out_width + j) * r.channels;
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

// The gradient of channels [0, n) of a pixel, whose padded place is (h, w), from the windows that
// cover it, in order; dy and index begin at those channels of the image.
template <typename T>
TRAINYARD_INLINE VecF GatherFromWindows(const MaxPoolBackwardRow<T>& r, const T* dy,
                                        const uint8_t* index, int64_t h, int64_t w, Span rows,
                                        Span cols, int64_t n) {
  VecF sum{};
  for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
    for (int64_t ow = cols.begin; ow < cols.end; ++ow) {
      const auto place = static_cast<int32_t>((h - oh * r.stride) * r.window + (w - ow * r.stride));
      const int64_t from = (oh * r.out_width + ow) * r.channels;
      VecU8 bytes{};
      __builtin_memcpy(&bytes, index + from, n);
      const VecI places = __builtin_convertvector(bytes, VecI);
      sum += places == place ? LoadUpTo(dy + from, n) : VecF{};
    }
  }
  return sum;
}

template <typename T>
void MaxPoolBackwardOfRow(const MaxPoolBackwardRow<T>& r) {
  const int64_t h = r.row + r.pad;
  const Span rows = Covering(h, r.window, r.stride, r.out_height);
  for (int64_t j = 0; j < r.width; ++j) {
    const int64_t w = j + r.pad;
    const Span cols = Covering(w, r.window, r.stride, r.out_width);
    T* dx = r.dx + (r.row * r.width + j) * r.channels;
    int64_t c = 0;
    for (; c + kLanes <= r.channels; c += kLanes) {
      Store(dx + c, GatherFromWindows(r, r.dy + c, r.index + c, h, w, rows, cols, kLanes));
    }
    if (c == r.channels) continue;
    const int64_t n = r.channels - c;
    StorePart(dx + c, GatherFromWindows(r, r.dy + c, r.index + c, h, w, rows, cols, n), n);
  }
}

template <typename T>
void RegisterMaxPool(ElementLoops<T>& loops) {
  loops.max_pool = MaxPoolOfRow<T>;
  loops.max_pool_backward = MaxPoolBackwardOfRow<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterMaxPool)

}  // namespace trainyard::kernels::TRAINYARD_ISA
