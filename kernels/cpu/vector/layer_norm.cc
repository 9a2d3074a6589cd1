#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Calls whole(i) for every full vector and part(i, n) for what is left.
template <typename Whole, typename Part>
TRAINYARD_INLINE void EachVector(int64_t cols, Whole whole, Part part) {
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) whole(i);
  if (i < cols) part(i, cols - i);
}

TRAINYARD_INLINE VecF LaneMask(int64_t n) {
  return LaneNumbers() < static_cast<int32_t>(n) ? Splat(1.0f) : VecF{};
}

TRAINYARD_INLINE float Sum(const float* x, int64_t cols) {
  VecF sum{};
  EachVector(
      cols, [&](int64_t i) { sum += Load(x + i); },
      [&](int64_t i, int64_t n) { sum += LoadPart(x + i, n); });
  return ReduceAdd(sum);
}

template <typename T>
void LayerNorm(const LayerNormRows<T>& r) {
  const float inverse = 1.0f / static_cast<float>(r.cols);
  for (int64_t row = 0; row < r.rows; ++row) {
    const float* x = r.x + row * r.cols;
    T* y = r.y + row * r.cols;
    const float mean = r.mean == nullptr ? 0.0f : Sum(x, r.cols) * inverse;
    VecF squares{};
    EachVector(
        r.cols,
        [&](int64_t i) {
          const VecF d = Load(x + i) - mean;
          squares += d * d;
        },
        [&](int64_t i, int64_t n) {
          const VecF d = (LoadPart(x + i, n) - mean) * LaneMask(n);
          squares += d * d;
        });
    const float rstd = 1.0f / __builtin_sqrtf(ReduceAdd(squares) * inverse + r.epsilon);
    if (r.mean != nullptr) r.mean[row] = mean;
    r.rstd[row] = rstd;
    EachVector(
        r.cols,
        [&](int64_t i) {
          VecF v = (Load(x + i) - mean) * rstd * Load(r.gamma + i);
          if (r.beta != nullptr) v += Load(r.beta + i);
          Store(y + i, v);
        },
        [&](int64_t i, int64_t n) {
          VecF v = (LoadPart(x + i, n) - mean) * rstd * LoadPart(r.gamma + i, n);
          if (r.beta != nullptr) v += LoadPart(r.beta + i, n);
          StorePart(y + i, v, n);
        });
  }
}

// With g = dy * gamma and xhat = (x - mean) * rstd:
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), without mean(g) if there is no mean
template <typename T>
void LayerNormBackwardRun(const LayerNormBackwardRows<T>& r) {
  const float inverse = 1.0f / static_cast<float>(r.cols);
  float* const sums[] = {r.dgamma, r.dbeta};
  for (float* to : sums) {
    for (int64_t i = 0; to != nullptr && i < r.cols; ++i) to[i] = 0;
  }
  for (int64_t row = 0; row < r.rows; ++row) {
    const float* x = r.x + row * r.cols;
    const T* dy = r.dy + row * r.cols;
    float* dx = r.dx == nullptr ? nullptr : r.dx + row * r.cols;
    const float rstd = r.rstd[row];
    const float shift = r.mean == nullptr ? 0.0f : -r.mean[row] * rstd;
    VecF sum{}, dot{};
    const auto add = [&](VecF v, VecF gradient, VecF gamma) __attribute__((always_inline)) {
      const VecF g = gradient * gamma;
      sum += g;
      dot += g * (v * rstd + shift);
    };
    EachVector(
        r.cols, [&](int64_t i) { add(Load(x + i), Load(dy + i), Load(r.gamma + i)); },
        [&](int64_t i, int64_t n) {
          add(LoadPart(x + i, n), LoadPart(dy + i, n), LoadPart(r.gamma + i, n));
        });
    const float mean_g = r.mean == nullptr ? 0.0f : ReduceAdd(sum) * inverse;
    const float mean_dot = ReduceAdd(dot) * inverse;
    const auto gradient = [&](VecF xhat, VecF dyv, VecF gamma) __attribute__((always_inline)) {
      return (dyv * gamma - mean_g - xhat * mean_dot) * rstd;
    };
    EachVector(
        r.cols,
        [&](int64_t i) {
          const VecF xhat = Load(x + i) * rstd + shift;
          const VecF dyv = Load(dy + i);
          if (dx != nullptr) {
            VecF d = gradient(xhat, dyv, Load(r.gamma + i));
            if (r.accumulate_dx) d += Load(dx + i);
            Store(dx + i, d);
          }
          if (r.dgamma != nullptr) Store(r.dgamma + i, Load(r.dgamma + i) + dyv * xhat);
          if (r.dbeta != nullptr) Store(r.dbeta + i, Load(r.dbeta + i) + dyv);
        },
        [&](int64_t i, int64_t n) {
          const VecF xhat = LoadPart(x + i, n) * rstd + shift;
          const VecF dyv = LoadPart(dy + i, n);
          if (dx != nullptr) {
            VecF d = gradient(xhat, dyv, LoadPart(r.gamma + i, n));
            if (r.accumulate_dx) d += LoadPart(dx + i, n);
            StorePart(dx + i, d, n);
          }
          if (r.dgamma != nullptr) {
            StorePart(r.dgamma + i, LoadPart(r.dgamma + i, n) + dyv * xhat, n);
          }
          if (r.dbeta != nullptr) StorePart(r.dbeta + i, LoadPart(r.dbeta + i, n) + dyv, n);
        });
  }
}

template <typename T>
void RegisterLayerNorm(ElementLoops<T>& loops) {
  loops.layer_norm = LayerNorm<T>;
  loops.layer_norm_backward = LayerNormBackwardRun<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterLayerNorm)

}  // namespace trainyard::kernels::TRAINYARD_ISA
