#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

constexpr int kSums = 16;

// Sixteen elements in fp32: themselves, or in `wide`.
TRAINYARD_INLINE const float* Sixteen(const float* x, float*) { return x; }
template <typename T>
TRAINYARD_INLINE const float* Sixteen(const T* x, float* wide) {
  Copy(kSums, x, wide);
  return wide;
}

// Element i goes to running sum i mod 16, whatever the width of a vector; the sums are folded in
// halves. A square of a float is exact in double, so contraction cannot change it either.
template <typename T, typename F>
TRAINYARD_INLINE double SixteenSums(const T* x, int64_t n, F f) {
  double sums[kSums] = {};
  float wide[kSums];
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    const float* const each = Sixteen(x + i, wide);
    for (int j = 0; j < kSums; ++j) sums[j] += f(static_cast<double>(each[j]));
  }
  for (int j = 0; i + j < n; ++j) sums[j] += f(static_cast<double>(ToFloat(x[i + j])));
  for (int width = kSums / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

double SumOfRange(const float* x, int64_t n) {
  return SixteenSums(x, n, [](double v) { return v; });
}

template <typename T>
double SquaredNormOfRange(const T* x, int64_t n) {
  return SixteenSums(x, n, [](double v) { return v * v; });
}

template <typename T>
void ColumnSumOfRows(const T* x, int64_t rows, int64_t cols, int64_t stride, float* y) {
  constexpr int kVectors = 4;
  int64_t c = 0;
  for (; c + kVectors * kLanes <= cols; c += kVectors * kLanes) {
    VecF sums[kVectors] = {};
    for (int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < kVectors; ++j) sums[j] += Load(x + r * stride + c + j * kLanes);
    }
    for (int j = 0; j < kVectors; ++j) Store(y + c + j * kLanes, sums[j]);
  }
  for (; c < cols; c += kLanes) {
    const int64_t n = cols - c < kLanes ? cols - c : kLanes;
    VecF sum{};
    for (int64_t r = 0; r < rows; ++r) {
      sum += n == kLanes ? Load(x + r * stride + c) : LoadPart(x + r * stride + c, n);
    }
    StorePart(y + c, sum, n);
  }
}

template <typename T>
void RegisterColumnSum(ElementLoops<T>& loops) {
  loops.column_sum = ColumnSumOfRows<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterColumnSum)

template <typename T>
void RegisterSquaredNorm(ElementLoops<T>& loops) {
  loops.squared_norm = SquaredNormOfRange<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterSquaredNorm)

}  // namespace trainyard::kernels::TRAINYARD_ISA
