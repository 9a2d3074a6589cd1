#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/math.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// NaN does not win: it shows in the sum of exponentials.
template <typename T>
TRAINYARD_INLINE float LargestOf(const T* x, int64_t n) {
  VecF best = Splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = Max(Load(x + i), best);
  if (i < n) best = Max(LoadPart(x + i, n - i, -__builtin_inff()), best);
  return ReduceMax(best);
}

// Sum of exp(x - largest), each left in `out` unless it is null; out may be x.
template <typename T>
TRAINYARD_INLINE float SumOfExp(const T* x, int64_t n, float largest, T* out) {
  VecF sum{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF e = ExpOfNegative(Load(x + i) - largest);
    sum += e;
    if (out != nullptr) Store(out + i, e);
  }
  if (i < n) {
    const VecF e = ExpOfNegative(LoadPart(x + i, n - i, -__builtin_inff()) - largest);
    sum += e;
    if (out != nullptr) StorePart(out + i, e, n - i);
  }
  return ReduceAdd(sum);
}

template <typename T>
TRAINYARD_INLINE bool IsFirstLargest(const T* x, int32_t target, float largest) {
  if (!(x[target] == largest)) return false;
  for (int32_t i = 0; i < target; ++i) {
    if (x[i] == largest) return false;
  }
  return true;
}

template <typename T>
void CrossEntropyOfRows(const CrossEntropyRows<T>& r) {
  for (int64_t row = 0; row < r.rows; ++row) {
    const T* x = r.logits + row * r.classes;
    T* dx = r.dlogits == nullptr ? nullptr : r.dlogits + row * r.classes;
    const int32_t target = r.targets[row];
    if (target < 0) {
      r.losses[row] = 0;
      if (r.correct != nullptr) r.correct[row] = 0;
      if (dx != nullptr) __builtin_memset(dx, 0, sizeof(T) * r.classes);
      continue;
    }
    const float largest = LargestOf(x, r.classes);
    const float at_target = x[target];
    if (r.correct != nullptr) r.correct[row] = IsFirstLargest(x, target, largest) ? 1.0f : 0.0f;
    const float sum = SumOfExp(x, r.classes, largest, dx);
    r.losses[row] = LogOfPositive(Splat(sum))[0] - (at_target - largest);
    if (dx == nullptr) continue;
    const float factor = r.scale / sum;
    Map(r.classes, dx, dx, [&](VecF e) { return e * factor; });
    dx[target] -= r.scale;
  }
}

template <typename T>
void OfferCrossEntropy(ElementLoops<T>& loops) {
  loops.cross_entropy = CrossEntropyOfRows<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(OfferCrossEntropy)

}  // namespace trainyard::kernels::TRAINYARD_ISA
