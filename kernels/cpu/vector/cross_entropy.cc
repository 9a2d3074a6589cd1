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

// The layout of kernels/ops/cross_entropy_shards.h, which this folder does not include.
struct ShardStatistics {
  float largest, sum, mean, of_target;
  int32_t first_largest;
};
struct NormOfRow {
  float largest, sum;
};

// The place of the first x that is `largest`; -1: there is none.
template <typename T>
TRAINYARD_INLINE int32_t FirstLargest(const T* x, int64_t n, float largest) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    const VecF v = count == kLanes ? Load(x + i) : LoadPart(x + i, count, __builtin_nanf(""));
    const VecI found = v == largest;
    for (int l = 0; l < kLanes; ++l) {
      if (found[l] != 0) return static_cast<int32_t>(i) + l;
    }
  }
  return -1;
}

template <typename T>
void CrossEntropyShardOfRows(const CrossEntropyShardRows<T>& r) {
  for (int64_t row = 0; row < r.rows; ++row) {
    auto* const to = reinterpret_cast<ShardStatistics*>(r.statistics) + row;
    *to = {};
    if (r.targets[row] < 0) continue;
    const T* const x = r.logits + row * r.classes;
    const int64_t target = r.targets[row] - r.first;
    to->largest = LargestOf(x, r.classes);
    // Where all are -inf the sum is 0, and NaN where one is NaN.
    to->sum = SumOfExp(x, r.classes, to->largest == -__builtin_inff() ? 0 : to->largest);
    if (r.with_mean) to->mean = MeanBelow(x, r.classes, to->largest);
    if (target >= 0 && target < r.classes) to->of_target = ToFloat(x[target]);
    to->first_largest = r.with_first_largest ? FirstLargest(x, r.classes, to->largest) : -1;
  }
}

constexpr int64_t kMostShards = 128;

// Neighbours pairwise, until one is left: the tree that splits n at the largest power of two below.
TRAINYARD_INLINE float AddInTree(float* values, int64_t n) {
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t i = 0; i + width < n; i += 2 * width) values[i] += values[i + width];
  }
  return values[0];
}

void CrossEntropyOfShards(const CrossEntropyOfShardsRows& r) {
  const auto first_of = [&](int64_t shard) { return r.classes * shard / r.shards; };
  for (int64_t row = 0; row < r.rows; ++row) {
    const auto of = [&](int64_t shard) -> const ShardStatistics& {
      return reinterpret_cast<const ShardStatistics*>(r.statistics[shard])[row];
    };
    const int64_t target = r.targets[row];
    NormOfRow norm = {};
    float loss = 0, z = 0, correct = 0;
    if (target >= 0) {
      norm.largest = -__builtin_inff();
      for (int64_t s = 0; s < r.shards; ++s) {
        if (of(s).largest > norm.largest) norm.largest = of(s).largest;
      }
      float sums[kMostShards], means[kMostShards], of_target = 0;
      bool seen = false;
      for (int64_t s = 0; s < r.shards; ++s) {
        const float above = of(s).largest - norm.largest;
        const bool nothing = of(s).largest == -__builtin_inff();  // but a NaN
        sums[s] = nothing ? of(s).sum : of(s).sum * ExpOfNegative(Splat(above))[0];
        means[s] = static_cast<float>(first_of(s + 1) - first_of(s)) * (of(s).mean + above);
        if (target >= first_of(s) && target < first_of(s + 1)) of_target = of(s).of_target;
        if (seen || of(s).largest != norm.largest) continue;
        seen = true;
        correct = first_of(s) + of(s).first_largest == target ? 1.0f : 0.0f;
      }
      norm.sum = AddInTree(sums, r.shards);
      const float mean =
          r.smoothing > 0 ? AddInTree(means, r.shards) / static_cast<float>(r.classes) : 0;
      const float log_sum = LogOfPositive(Splat(norm.sum))[0];
      const float lse = log_sum + norm.largest;
      z = r.z_loss > 0 ? r.z_loss * lse * lse : 0;
      loss = log_sum - ((1 - r.smoothing) * (of_target - norm.largest) + r.smoothing * mean) + z;
    }
    r.losses[row] = loss;
    if (r.z_losses != nullptr) r.z_losses[row] = z;
    if (r.correct != nullptr) r.correct[row] = correct;
    if (r.norms != nullptr) reinterpret_cast<NormOfRow*>(r.norms)[row] = norm;
  }
}

template <typename T>
void CrossEntropyShardGradientOfRows(const CrossEntropyShardGradientRows<T>& r) {
  const float everywhere = r.scale * r.smoothing / static_cast<float>(r.all_classes);
  for (int64_t row = 0; row < r.rows; ++row) {
    const T* const x = r.logits + row * r.classes;
    T* const dx = r.dlogits + row * r.classes;
    if (r.targets[row] < 0) {
      __builtin_memset(dx, 0, sizeof(T) * r.classes);
      continue;
    }
    const NormOfRow norm = reinterpret_cast<const NormOfRow*>(r.norms)[row];
    const float lse = LogOfPositive(Splat(norm.sum))[0] + norm.largest;
    const float factor = r.scale * (r.z_loss > 0 ? 1 + 2 * r.z_loss * lse : 1) / norm.sum;
    const int64_t target = r.targets[row] - r.first;
    const bool has_target = target >= 0 && target < r.classes;
    const float of_target = has_target ? ToFloat(x[target]) : 0;
    Map(r.classes, x, dx,
        [&](VecF v) { return ExpOfNegative(v - norm.largest) * factor - everywhere; });
    if (!has_target) continue;
    const VecF at = ExpOfNegative(Splat(of_target - norm.largest)) * factor - everywhere;
    StorePart(dx + target, at - r.scale * (1 - r.smoothing), 1);
  }
}

template <typename T>
void RegisterCrossEntropy(ElementLoops<T>& loops) {
  loops.cross_entropy = CrossEntropyOfRows<T>;
  loops.cross_entropy_shard = CrossEntropyShardOfRows<T>;
  loops.cross_entropy_shard_gradient = CrossEntropyShardGradientOfRows<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterCrossEntropy)

}  // namespace trainyard::kernels::TRAINYARD_ISA
