#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

template <int kValue>
struct Count {
  static constexpr int value = kValue;
};

// Calls f(Count<vectors>, first column, elements of a vector) tile by tile: four whole vectors
// while there are as many, so that a column's sums and factors stay in registers over all rows.
template <typename F>
TRAINYARD_INLINE void EachTile(int64_t cols, F f) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) f(Count<4>{}, c, int64_t{kLanes});
  for (; c < cols; c += kLanes) f(Count<1>{}, c, cols - c < kLanes ? cols - c : int64_t{kLanes});
}

// Sums are taken of the distance to the first row, so that a mean far from zero costs no digits;
// the squares around the mean come from the cache.
template <typename T>
void BatchNormMomentsOfRows(const BatchNormMoments<T>& r) {
  const float inverse = 1.0f / static_cast<float>(r.rows);
  EachTile(
      r.cols, [&](auto count, int64_t c, int64_t n) __attribute__((always_inline)) {
        constexpr int kVectors = decltype(count)::value;
        VecF first[kVectors], sum[kVectors] = {}, squares[kVectors] = {};
        for (int j = 0; j < kVectors; ++j) first[j] = LoadUpTo(r.x + c + j * kLanes, n);
        for (int64_t row = 1; row < r.rows; ++row) {
          const T* x = r.x + row * r.cols + c;
          for (int j = 0; j < kVectors; ++j) sum[j] += LoadUpTo(x + j * kLanes, n) - first[j];
        }
        for (int j = 0; j < kVectors; ++j) sum[j] = first[j] + sum[j] * inverse;  // the mean
        for (int64_t row = 0; row < r.rows; ++row) {
          const T* x = r.x + row * r.cols + c;
          for (int j = 0; j < kVectors; ++j) {
            const VecF d = LoadUpTo(x + j * kLanes, n) - sum[j];
            squares[j] += d * d;
          }
        }
        for (int j = 0; j < kVectors; ++j) {
          StoreUpTo(r.mean + c + j * kLanes, sum[j], n);
          StoreUpTo(r.squares + c + j * kLanes, squares[j], n);
        }
      });
}

template <bool kResidual, bool kRelu, typename T>
TRAINYARD_INLINE void Apply(const BatchNormRows<T>& r) {
  for (int64_t row = 0; row < r.rows; ++row) {
    const T* x = r.x + row * r.cols;
    const T* residual = r.residual + (kResidual ? row * r.cols : 0);
    T* y = r.y + row * r.cols;
    const auto at = [&](int64_t c, int64_t n) __attribute__((always_inline)) {
      VecF v = (LoadUpTo(x + c, n) - LoadUpTo(r.mean + c, n)) * LoadUpTo(r.scale + c, n) +
               LoadUpTo(r.beta + c, n);
      if (kResidual) v += LoadUpTo(residual + c, n);
      if (kRelu) v = v < 0.0f ? VecF{} : v;  // NaN passes through, as in PyTorch
      StoreUpTo(y + c, v, n);
    };
    int64_t c = 0;
    for (; c + kLanes <= r.cols; c += kLanes) at(c, kLanes);
    if (c < r.cols) at(c, r.cols - c);
  }
}

template <typename T>
void BatchNormOfRows(const BatchNormRows<T>& r) {
  if (r.residual == nullptr) {
    r.relu ? Apply<false, true>(r) : Apply<false, false>(r);
  } else {
    r.relu ? Apply<true, true>(r) : Apply<true, false>(r);
  }
}

template <bool kRelu, bool kResidual, typename T>
TRAINYARD_INLINE void Sums(const BatchNormSums<T>& r) {
  EachTile(
      r.cols, [&](auto count, int64_t c, int64_t n) __attribute__((always_inline)) {
        constexpr int kVectors = decltype(count)::value;
        VecF mean[kVectors], sum[kVectors] = {}, dot[kVectors] = {};
        for (int j = 0; j < kVectors; ++j) mean[j] = LoadUpTo(r.mean + c + j * kLanes, n);
        for (int64_t row = 0; row < r.rows; ++row) {
          const int64_t at = row * r.cols + c;
          for (int j = 0; j < kVectors; ++j) {
            VecF g = LoadUpTo(r.dy + at + j * kLanes, n);
            if (kRelu) g = LoadUpTo(r.y + at + j * kLanes, n) > 0.0f ? g : VecF{};
            if (kResidual) StoreUpTo(r.dresidual + at + j * kLanes, g, n);
            sum[j] += g;
            dot[j] += g * (LoadUpTo(r.x + at + j * kLanes, n) - mean[j]);
          }
        }
        for (int j = 0; j < kVectors; ++j) {
          StoreUpTo(r.sum + c + j * kLanes, sum[j], n);
          StoreUpTo(r.dot + c + j * kLanes, dot[j], n);
        }
      });
}

template <typename T>
void BatchNormSumsOfRows(const BatchNormSums<T>& r) {
  if (r.y == nullptr) {
    r.dresidual == nullptr ? Sums<false, false>(r) : Sums<false, true>(r);
  } else {
    r.dresidual == nullptr ? Sums<true, false>(r) : Sums<true, true>(r);
  }
}

template <bool kRelu, typename T>
TRAINYARD_INLINE void Gradient(const BatchNormGradient<T>& r) {
  for (int64_t row = 0; row < r.rows; ++row) {
    const int64_t first = row * r.cols;
    const auto at = [&](int64_t c, int64_t n) __attribute__((always_inline)) {
      VecF g = LoadUpTo(r.dy + first + c, n);
      if (kRelu) g = LoadUpTo(r.y + first + c, n) > 0.0f ? g : VecF{};
      const VecF d = LoadUpTo(r.x + first + c, n) - LoadUpTo(r.mean + c, n);
      StoreUpTo(
          r.dx + first + c,
          g * LoadUpTo(r.of_g + c, n) + (d * LoadUpTo(r.of_d + c, n) + LoadUpTo(r.plus + c, n)), n);
    };
    int64_t c = 0;
    for (; c + kLanes <= r.cols; c += kLanes) at(c, kLanes);
    if (c < r.cols) at(c, r.cols - c);
  }
}

template <typename T>
void BatchNormGradientOfRows(const BatchNormGradient<T>& r) {
  r.y == nullptr ? Gradient<false>(r) : Gradient<true>(r);
}

template <typename T>
void RegisterBatchNorm(ElementLoops<T>& loops) {
  loops.batch_norm_moments = BatchNormMomentsOfRows<T>;
  loops.batch_norm = BatchNormOfRows<T>;
  loops.batch_norm_sums = BatchNormSumsOfRows<T>;
  loops.batch_norm_gradient = BatchNormGradientOfRows<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterBatchNorm)

}  // namespace trainyard::kernels::TRAINYARD_ISA
