// Winograd's F(4x4, 3x3): 4x4 outputs of a 3x3 window by 36 products in place of 144. Lavin & Gray,
// "Fast Algorithms for Convolutional Neural Networks" (2015): Y = A^T [(G g G^T) . (B^T d B)] A.
// Backward goes by the transposes of the same three transforms.

#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/panels.h"

namespace trainyard::kernels::TRAINYARD_ISA {

constexpr int kIn = 6, kOut = 4, kWindow = 3;

// The points of interpolation: 0, +-kA, +-kB and infinity. Chosen for the least rounding error
// among short fractions; the paper's 1 and 2 lose twice as much. See Barabasz et al., "Error
// Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks" (2020).
constexpr float kA = 0.625f, kB = 1.5f;
constexpr float kA2 = kA * kA, kB2 = kB * kB;
constexpr float kNear = 1 / (2 * kA2 * (kA2 - kB2)), kFar = 1 / (2 * kB2 * (kB2 - kA2));

// One dimension of each transform, from x[0], x[step], … to y[0], y[step], …

// B^T
TRAINYARD_INLINE void InputTransform(const VecF* x, int step, VecF* y) {
  const VecF d0 = x[0], d1 = x[step], d2 = x[2 * step], d3 = x[3 * step], d4 = x[4 * step],
             d5 = x[5 * step];
  const VecF near_even = d4 - kB2 * d2, near_odd = kA * (d3 - kB2 * d1);
  const VecF far_even = d4 - kA2 * d2, far_odd = kB * (d3 - kA2 * d1);
  y[0] = kA2 * kB2 * d0 - (kA2 + kB2) * d2 + d4;
  y[step] = near_even + near_odd;
  y[2 * step] = near_even - near_odd;
  y[3 * step] = far_even + far_odd;
  y[4 * step] = far_even - far_odd;
  y[5 * step] = kA2 * kB2 * d1 - (kA2 + kB2) * d3 + d5;
}

// A^T
TRAINYARD_INLINE void OutputTransform(const VecF* m, int step, VecF* y) {
  const VecF near_even = m[step] + m[2 * step], near_odd = m[step] - m[2 * step];
  const VecF far_even = m[3 * step] + m[4 * step], far_odd = m[3 * step] - m[4 * step];
  y[0] = m[0] + near_even + far_even;
  y[step] = kA * near_odd + kB * far_odd;
  y[2 * step] = kA2 * near_even + kB2 * far_even;
  y[3 * step] = kA2 * kA * near_odd + kB2 * kB * far_odd + m[5 * step];
}

// A
TRAINYARD_INLINE void OutputTransposed(const VecF* y, int step, VecF* n) {
  const VecF y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
  const VecF near_even = y0 + kA2 * y2, near_odd = kA * y1 + kA2 * kA * y3;
  const VecF far_even = y0 + kB2 * y2, far_odd = kB * y1 + kB2 * kB * y3;
  n[0] = y0;
  n[step] = near_even + near_odd;
  n[2 * step] = near_even - near_odd;
  n[3 * step] = far_even + far_odd;
  n[4 * step] = far_even - far_odd;
  n[5 * step] = y3;
}

// G
TRAINYARD_INLINE void WeightTransform(const VecF* g, int step, VecF* u) {
  const VecF g0 = g[0], g1 = g[step], g2 = g[2 * step];
  const VecF near_even = kNear * g0 + kNear * kA2 * g2, near_odd = kNear * kA * g1;
  const VecF far_even = kFar * g0 + kFar * kB2 * g2, far_odd = kFar * kB * g1;
  u[0] = g0 * (1 / (kA2 * kB2));
  u[step] = near_even + near_odd;
  u[2 * step] = near_even - near_odd;
  u[3 * step] = far_even + far_odd;
  u[4 * step] = far_even - far_odd;
  u[5 * step] = g2;
}

// G^T
TRAINYARD_INLINE void WeightTransposed(const VecF* u, int step, VecF* g) {
  const VecF near_even = u[step] + u[2 * step], near_odd = u[step] - u[2 * step];
  const VecF far_even = u[3 * step] + u[4 * step], far_odd = u[3 * step] - u[4 * step];
  g[0] = u[0] * (1 / (kA2 * kB2)) + kNear * near_even + kFar * far_even;
  g[step] = kNear * kA * near_odd + kFar * kB * far_odd;
  g[2 * step] = kNear * kA2 * near_even + kFar * kB2 * far_even + u[5 * step];
}

// Both dimensions of [kFrom, kFrom] values to [kTo, kTo], in rows of kIn.
template <int kFrom, int kTo, typename F>
TRAINYARD_INLINE void Both(VecF (&values)[kIn * kIn], F transform) {
  for (int j = 0; j < kFrom; ++j) transform(values + j, kIn, values + j);
  for (int i = 0; i < kTo; ++i) transform(values + i * kIn, 1, values + i * kIn);
}

// Calls f(image, first row, first column, i) for each tile.
template <typename T, typename F>
TRAINYARD_INLINE void EachTile(const WinogradImage<T>& w, F f) {
  const int64_t columns = (w.width + kOut - 1) / kOut, rows = (w.height + kOut - 1) / kOut;
  int64_t x = w.first % columns, y = w.first / columns % rows, n = w.first / columns / rows;
  for (int64_t i = 0; i < w.tiles; ++i) {
    f(w.data + n * w.height * w.width * w.channels, y * kOut, x * kOut, i);
    if (++x < columns) continue;
    x = 0;
    if (++y < rows) continue;
    y = 0;
    ++n;
  }
}

// A square of kSide pixels from (y, x) on, zeros outside the image, transformed for every channel.
template <int kSide, typename T, typename F>
TRAINYARD_INLINE void ToPlanes(const WinogradImage<const T>& w, int64_t margin,
                               const WinogradPlanes& to, F transform) {
  EachTile(w, [&](const T* image, int64_t y, int64_t x, int64_t tile) {
    y -= margin;
    x -= margin;
    const bool inside = y >= 0 && x >= 0 && y + kSide <= w.height && x + kSide <= w.width;
    const T* const corner = image + (y * w.width + x) * w.channels;
    float* out = to.data + tile * to.tile;
    for (int64_t c = 0; c < w.channels; c += kLanes, out += to.chunk) {
      VecF values[kIn * kIn];
      for (int i = 0; i < kSide; ++i) {
        for (int j = 0; j < kSide; ++j) {
          const bool exists =
              inside || (y + i >= 0 && y + i < w.height && x + j >= 0 && x + j < w.width);
          values[i * kIn + j] = exists ? Load(corner + (i * w.width + j) * w.channels + c) : VecF{};
        }
      }
      Both<kSide, kIn>(values, transform);
      for (int k = 0; k < kIn * kIn; ++k) Store(out + k * to.plane, values[k]);
    }
  });
}

template <typename T>
static void Input(const WinogradImage<const T>& image, const WinogradPlanes& to) {
  ToPlanes<kIn>(
      image, 1, to, [](const VecF* x, int step, VecF* y) __attribute__((always_inline)) {
        InputTransform(x, step, y);
      });
}

template <typename T>
static void OutputGradient(const WinogradImage<const T>& image, const WinogradPlanes& to) {
  ToPlanes<kOut>(
      image, 0, to, [](const VecF* x, int step, VecF* y) __attribute__((always_inline)) {
        OutputTransposed(x, step, y);
      });
}

template <typename T>
static void Output(const WinogradPlanes& from, const float* bias, const WinogradImage<T>& w) {
  EachTile(w, [&](T* image, int64_t y, int64_t x, int64_t tile) {
    const int64_t rows = w.height - y, columns = w.width - x;
    T* const corner = image + (y * w.width + x) * w.channels;
    const float* in = from.data + tile * from.tile;
    for (int64_t c = 0; c < w.channels; c += kLanes, in += from.chunk) {
      VecF values[kIn * kIn];
      for (int k = 0; k < kIn * kIn; ++k) values[k] = Load(in + k * from.plane);
      Both<kIn, kOut>(
          values, [](const VecF* m, int step, VecF* to)
                      __attribute__((always_inline)) { OutputTransform(m, step, to); });
      const VecF plus = bias == nullptr ? VecF{} : Load(bias + c);
      for (int i = 0; i < kOut; ++i) {
        for (int j = 0; j < kOut; ++j) {
          if (i >= rows || j >= columns) continue;
          Store(corner + (i * w.width + j) * w.channels + c, values[i * kIn + j] + plus);
        }
      }
    }
  });
}

template <typename T>
static void Weights(const WinogradWeights<T>& w) {
  constexpr int kTaps = kWindow * kWindow;
  const int64_t steps = w.backward ? w.outs : w.ins;
  const int64_t of_step = (w.backward ? w.ins : 1) * kTaps;
  const int64_t of_column = (w.backward ? 1 : w.ins) * kTaps;
  for (int64_t j = w.first; j < w.first + w.cols; j += kLanes) {
    for (int64_t s = 0; s < steps; ++s) {
      float taps[kTaps][kLanes];
      for (int l = 0; l < kLanes; ++l) {
        const T* const window = w.w + s * of_step + (j + l) * of_column;
        for (int t = 0; t < kTaps; ++t)
          taps[t][l] = ToFloat(window[w.backward ? kTaps - 1 - t : t]);
      }
      VecF values[kIn * kIn];
      for (int t = 0; t < kTaps; ++t) values[t / kWindow * kIn + t % kWindow] = Load(taps[t]);
      Both<kWindow, kIn>(
          values, [](const VecF* g, int step, VecF* u)
                      __attribute__((always_inline)) { WeightTransform(g, step, u); });
      float* const to = w.to + j / kLanes * w.panel + s * kLanes;
      for (int k = 0; k < kIn * kIn; ++k) Store(to + k * w.plane, values[k]);
    }
  }
}

void WinogradWeightGradientOf(const WinogradWeightGradient& g) {
  constexpr int kTaps = kWindow * kWindow;
  for (int64_t c = 0; c < g.ins; c += kLanes) {
    VecF values[kIn * kIn];
    for (int k = 0; k < kIn * kIn; ++k) values[k] = Load(g.from + k * g.plane + c);
    Both<kIn, kWindow>(
        values, [](const VecF* u, int step, VecF* to)
                    __attribute__((always_inline)) { WeightTransposed(u, step, to); });
    float taps[kTaps][kLanes];
    for (int t = 0; t < kTaps; ++t) Store(taps[t], values[t / kWindow * kIn + t % kWindow]);
    float* const to = g.dw + c * kTaps;
    for (int l = 0; l < kLanes; ++l) {
      for (int t = 0; t < kTaps; ++t) {
        to[l * kTaps + t] = g.accumulate ? to[l * kTaps + t] + taps[t][l] : taps[t][l];
      }
    }
  }
}

// Sums are cut so that a panel stays in the first cache.
void PanelProductOf(const PanelProduct& p) {
  constexpr int64_t kDepth = 240;
  PanelProduct part = p;
  for (int64_t done = 0; done < p.depth; done += kDepth) {
    part.a = p.a + done * p.a_step;
    part.b = p.b + done * kLanes;
    part.depth = p.depth - done < kDepth ? p.depth - done : kDepth;
    part.accumulate = p.accumulate || done > 0;
    MultiplyPanels(part, [] {});
  }
}

template <typename T>
void RegisterWinograd(ElementLoops<T>& loops) {
  loops.winograd_input = Input<T>;
  loops.winograd_output = Output<T>;
  loops.winograd_gradient = OutputGradient<T>;
  loops.winograd_weights = Weights<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterWinograd)

}  // namespace trainyard::kernels::TRAINYARD_ISA
