#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/math.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Ignores NaN, which makes the sum of exponentials NaN instead.
template <typename T>
TRAINYARD_INLINE float LargestOf(const T* x, int64_t n) {
  VecF best = Splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = Max(Load(x + i), best);
  if (i < n) best = Max(LoadPart(x + i, n - i, -__builtin_inff()), best);
  return ReduceMax(best);
}

// Sum of exp(x - largest).
template <typename T>
TRAINYARD_INLINE float SumOfExp(const T* x, int64_t n, float largest) {
  VecF sum{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum += ExpOfNegative(Load(x + i) - largest);
  if (i < n) sum += ExpOfNegative(LoadPart(x + i, n - i, -__builtin_inff()) - largest);
  return ReduceAdd(sum);
}

// The same; stores each exponential in `out`, which may be x.
TRAINYARD_INLINE float KeepExp(const float* x, int64_t n, float largest, float* out) {
  VecF sum{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF e = ExpOfNegative(Load(x + i) - largest);
    sum += e;
    Store(out + i, e);
  }
  if (i < n) {
    const VecF e = ExpOfNegative(LoadPart(x + i, n - i, -__builtin_inff()) - largest);
    sum += e;
    StorePart(out + i, e, n - i);
  }
  return ReduceAdd(sum);
}

// Mean of x - largest.
template <typename T>
TRAINYARD_INLINE float MeanBelow(const T* x, int64_t n, float largest) {
  VecF sum{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum += Load(x + i) - largest;
  if (i < n) sum += LoadPart(x + i, n - i, largest) - largest;
  return ReduceAdd(sum) / static_cast<float>(n);
}

template <typename T>
TRAINYARD_INLINE bool IsFirstLargest(const T* x, int32_t target, float largest) {
  if (!(ToFloat(x[target]) == largest)) return false;
  VecI found{};
  int64_t i = 0;
  for (; i + kLanes <= target; i += kLanes) found |= Load(x + i) == largest;
  if (i < target) found |= LoadPart(x + i, target - i, __builtin_nanf("")) == largest;
  for (int l = 0; l < kLanes; ++l) {
    if (found[l] != 0) return false;
  }
  return true;
}

// dx = exp(x - largest) * factor - minus; dx may be x. For fp32 dx holds the exponential already
// (KeepExp); 16-bit elements cannot hold it to the last digits, so it is computed again.
template <typename T>
TRAINYARD_INLINE void Softmax(const T* x, int64_t n, float largest, float factor, float minus,
                              T* dx) {
  Map(n, x, dx, [&](VecF v) { return ExpOfNegative(v - largest) * factor - minus; });
}
TRAINYARD_INLINE void Softmax(const float*, int64_t n, float, float factor, float minus,
                              float* dx) {
  Map(n, dx, dx, [&](VecF e) { return e * factor - minus; });
}
template <typename T>
TRAINYARD_INLINE float SumFor(const T* x, int64_t n, float largest, T*) {
  return SumOfExp(x, n, largest);
}
TRAINYARD_INLINE float SumFor(const float* x, int64_t n, float largest, float* dx) {
  return dx == nullptr ? SumOfExp(x, n, largest) : KeepExp(x, n, largest, dx);
}

template <typename T>
void CrossEntropyOfRows(const CrossEntropyRows<T>& r) {
  for (int64_t row = 0; row < r.rows; ++row) {
    const T* x = r.logits + row * r.step;
    T* dx = r.dlogits == nullptr ? nullptr : r.dlogits + row * r.step;
    const int32_t target = r.targets[row];
    if (target < 0) {
      r.losses[row] = 0;
      if (r.z_losses != nullptr) r.z_losses[row] = 0;
      if (r.correct != nullptr) r.correct[row] = 0;
      if (dx != nullptr) __builtin_memset(dx, 0, sizeof(T) * r.classes);
      continue;
    }
    const float largest = LargestOf(x, r.classes);
    const float at_target = ToFloat(x[target]) - largest;
    if (r.correct != nullptr) r.correct[row] = IsFirstLargest(x, target, largest) ? 1.0f : 0.0f;
    const float mean = r.smoothing > 0 ? MeanBelow(x, r.classes, largest) : 0;
    const float sum = SumFor(x, r.classes, largest, dx);
    const float log_sum = LogOfPositive(Splat(sum))[0];
    const float lse = log_sum + largest;
    const float z = r.z_loss > 0 ? r.z_loss * lse * lse : 0;
    r.losses[row] = log_sum - ((1 - r.smoothing) * at_target + r.smoothing * mean) + z;
    if (r.z_losses != nullptr) r.z_losses[row] = z;
    if (dx == nullptr) continue;
    const float factor = r.scale * (r.z_loss > 0 ? 1 + 2 * r.z_loss * lse : 1) / sum;
    const float everywhere = r.scale * r.smoothing / static_cast<float>(r.classes);
    Softmax(x, r.classes, largest, factor, everywhere, dx);
    const VecF at = ExpOfNegative(Splat(at_target)) * factor - everywhere;
    StorePart(dx + target, at - r.scale * (1 - r.smoothing), 1);
  }
}

template <typename T>
void RegisterCrossEntropy(ElementLoops<T>& loops) {
  loops.cross_entropy = CrossEntropyOfRows<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterCrossEntropy)

}  // namespace trainyard::kernels::TRAINYARD_ISA
