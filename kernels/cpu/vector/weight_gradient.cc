// The gradient of a convolution by its weights, as products over pixels: dw[o][ky, kx, i] = sum
// over the output's pixels of dy[pixel][o] * x[pixel seen through (ky, kx)][i].

#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/panels.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Walks the output's pixels and tells which of the input is seen through one place of the window.
template <typename T>
struct InputRows {
  const WeightGradientTile<T>& t;
  const T* image;
  int64_t y, x;  // of the output

  InputRows(const WeightGradientTile<T>& tile, int64_t pixel) : t(tile) {
    const int64_t pixels = t.out_height * t.out_width;
    image = t.x + pixel / pixels * t.height * t.width * t.in;
    y = pixel % pixels / t.out_width;
    x = pixel % t.out_width;
  }

  // Null in the padding.
  const T* Next() {
    const int64_t from_y = y * t.stride + t.shift_y, from_x = x * t.stride + t.shift_x;
    const bool inside = from_y >= 0 && from_y < t.height && from_x >= 0 && from_x < t.width;
    const T* const row = inside ? image + (from_y * t.width + from_x) * t.in : nullptr;
    if (++x == t.out_width) {
      x = 0;
      if (++y == t.out_height) {
        y = 0;
        image += t.height * t.width * t.in;
      }
    }
    return row;
  }
};

template <typename T>
static void WeightGradient(const WeightGradientTile<T>& t) {
  constexpr int64_t kDepth = scratch::kWeightGradientDepth;
  float* const a = t.scratch;
  float* const b = a + PanelsOf(t.outs) * kDepth * kLanes;
  const T* dy = t.dy + t.first_pixel * t.out;
  InputRows<T> x(t, t.first_pixel);
  const int64_t tiles = TilesOf(t.outs, t.ins);
  for (int64_t done = 0; done < t.pixels; done += kDepth) {
    const int64_t left = t.pixels - done, depth = left < kDepth ? left : kDepth;
    PackPanels<T>([&] { return x.Next(); }, depth, t.ins, b);
    PackPanels<T>([&] { return (dy += t.out) - t.out; }, depth, t.outs, a);
    // What is packed next is fetched while this is multiplied.
    const int64_t next = left - depth < kDepth ? left - depth : kDepth;
    InputRows<T> next_x = x;
    int64_t fetched = 0, tile = 0;
    MultiplyPanels({.a = a,
                    .a_row = 1,
                    .a_step = kLanes,
                    .a_panel = depth * kLanes,
                    .b = b,
                    .b_panel = depth * kLanes,
                    .depth = depth,
                    .c = t.dw,
                    .c_row = t.dw_row,
                    .rows = t.outs,
                    .cols = t.ins,
                    .accumulate = t.accumulate || done > 0},
                   [&] {
                     for (++tile; fetched * tiles < next * tile; ++fetched) {
                       Fetch(dy + fetched * t.out, t.outs);
                       const T* const row = next_x.Next();
                       if (row != nullptr) Fetch(row, t.ins);
                     }
                   });
  }
}

// The partials of kLanes inputs are summed place by place, then laid down input by input.
void SumWeightGradient(const WeightGradientSums& s) {
  for (int64_t i = 0; i < s.in; i += kLanes) {
    const int64_t lanes = s.in - i < kLanes ? s.in - i : kLanes;
    for (int64_t place = 0; place < s.places; ++place) {
      const float* const from = s.partials + place * s.in + i;
      VecF sum = LoadUpTo(from, lanes);
      for (int64_t p = 1; p < s.count; ++p) sum += LoadUpTo(from + p * s.each, lanes);
      float* const to = s.dw + i * s.places + place;
      if (s.places == 1) {
        StoreUpTo(to, s.accumulate ? LoadUpTo(to, lanes) + sum : sum, lanes);
        continue;
      }
      for (int64_t l = 0; l < lanes; ++l) {
        to[l * s.places] = s.accumulate ? to[l * s.places] + sum[l] : sum[l];
      }
    }
  }
}

template <typename T>
void RegisterWeightGradient(ElementLoops<T>& loops) {
  loops.weight_gradient = WeightGradient<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterWeightGradient)

}  // namespace trainyard::kernels::TRAINYARD_ISA
