#include "kernels/ops/cross_entropy_shards.h"

#include <climits>
#include <cmath>

#include "kernels/cuda/class_rows.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/tree_sum.cuh"
#include "kernels/for_element.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

template <typename T>
struct ShardOfClasses {
  const T* logits;         // [rows, classes]
  const int32_t* targets;  // [rows]
  ClassStatistics* statistics;
  int64_t rows, classes, first;
  bool with_mean, with_first_largest;
  bool by_packs;  // rows begin where packs do
};

// The place of the first logit that is `largest`; -1: there is none.
template <int kLanes, typename T>
__device__ int FirstLargest(const T* logits, int classes, int lane, float largest) {
  int first = INT_MAX;
  for (int c = lane; c < classes && first == INT_MAX; c += kLanes) {
    if (ToFloat(logits[c]) == largest) first = c;
  }
  first = RowBest<kLanes>(first, [](int a, int b) { return min(a, b); });
  return first == INT_MAX ? -1 : first;
}

template <int kLanes, typename T>
__global__ void __launch_bounds__(kBlockFor<kLanes>) CrossEntropyShardKernel(ShardOfClasses<T> a) {
  const int64_t row = int64_t{blockIdx.x} * (kBlockFor<kLanes> / kLanes) + threadIdx.x / kLanes;
  if (row >= a.rows) return;  // a whole warp; never part of a block that serves one row
  const int lane = threadIdx.x % kLanes;
  const int classes = static_cast<int>(a.classes), groups = classes / kGroup;
  const int tail = groups * kGroup + lane;  // this lane's class behind the groups, if it exists
  const T* const logits = a.logits + row * a.classes;
  if (a.targets[row] < 0) {
    if (lane == 0) a.statistics[row] = {};
    return;
  }
  const float pivot = ToFloat(logits[0]);
  const float of_tail = tail < classes ? ToFloat(logits[tail]) : 0;
  ExpSum seen;
  float above = 0;  // sum of logit - pivot
  const auto see = [&]<int kCount>(const auto& x) {
    seen.Take<kCount>(x);
    if (!a.with_mean) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) above += x[i] - pivot;
  };
  EachGroup<true, kLanes>(logits, lane, groups, a.by_packs, [&](const Group<T>& group, int) {
    see.template operator()<kGroup>(group);
  });
  if (tail < classes) see.template operator()<1>(&of_tail);
  const ExpSum all = seen.OfRow<kLanes>();
  const float mean = a.with_mean ? RowSum<kLanes>(above) / a.classes + (pivot - all.largest) : 0.0f;
  const int first_largest =
      a.with_first_largest ? FirstLargest<kLanes>(logits, classes, lane, all.largest) : -1;
  if (lane > 0) return;
  const int64_t target = a.targets[row] - a.first;
  const bool has_target = target >= 0 && target < a.classes;
  a.statistics[row] = {.largest = all.largest,
                       .sum = all.sum,
                       .mean = mean,
                       .of_target = has_target ? ToFloat(logits[target]) : 0.0f,
                       .first_largest = first_largest};
}

struct AllShardsOfClasses {
  const float* first;
  TableList statistics;    // of each shard [rows, kClassStatistics]
  const int32_t* targets;  // [rows]
  float *losses, *z_losses, *correct;
  RowNorm* norms;
  int64_t rows, classes;
  float smoothing, z_loss;

  __device__ ClassStatistics Of(int shard, int64_t row) const {
    return reinterpret_cast<const ClassStatistics*>(first + statistics.start[shard])[row];
  }
  __device__ int64_t FirstOf(int64_t shard) const { return classes * shard / statistics.count; }
};

// A thread per row.
__global__ void __launch_bounds__(kThreads) CrossEntropyOfShardsKernel(AllShardsOfClasses a) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= a.rows) return;
  const int64_t target = a.targets[row];
  const int shards = static_cast<int>(a.statistics.count);
  RowNorm norm = {};
  float loss = 0, z = 0, correct = 0;
  if (target >= 0) {
    norm.largest = -INFINITY;
    for (int s = 0; s < shards; ++s) norm.largest = fmaxf(norm.largest, a.Of(s, row).largest);
    float of_target = 0;
    bool seen = false;
    for (int s = 0; s < shards; ++s) {
      const ClassStatistics of_shard = a.Of(s, row);
      if (target >= a.FirstOf(s) && target < a.FirstOf(s + 1)) of_target = of_shard.of_target;
      if (seen || of_shard.largest != norm.largest) continue;
      seen = true;
      correct = a.FirstOf(s) + of_shard.first_largest == target ? 1.0f : 0.0f;
    }
    float sum[1], mean[1] = {0};
    SumInTree<0>(shards, sum, [&](int s, float(&to)[1]) {
      const ClassStatistics of_shard = a.Of(s, row);
      const bool nothing = of_shard.largest == -INFINITY;  // but a NaN
      to[0] = nothing ? of_shard.sum : of_shard.sum * ExpOf(of_shard.largest - norm.largest);
    });
    if (a.smoothing > 0) {
      SumInTree<0>(shards, mean, [&](int s, float(&to)[1]) {
        const ClassStatistics of_shard = a.Of(s, row);
        const auto classes = static_cast<float>(a.FirstOf(s + 1) - a.FirstOf(s));
        to[0] = classes * (of_shard.mean + (of_shard.largest - norm.largest));
      });
      mean[0] /= a.classes;
    }
    norm.sum = sum[0];
    const float log_sum = logf(norm.sum), lse = log_sum + norm.largest;
    z = a.z_loss > 0 ? a.z_loss * lse * lse : 0.0f;
    loss =
        log_sum - ((1.0f - a.smoothing) * (of_target - norm.largest) + a.smoothing * mean[0]) + z;
  }
  a.losses[row] = loss;
  if (a.z_losses != nullptr) a.z_losses[row] = z;
  if (a.correct != nullptr) a.correct[row] = correct;
  if (a.norms != nullptr) a.norms[row] = norm;
}

template <typename T>
struct GradientOfShard {
  const T* logits;         // [rows, classes]
  const int32_t* targets;  // [rows]
  const RowNorm* norms;    // [rows]
  T* dlogits;              // as logits; may be logits
  const StepState* state;  // or null
  int64_t rows, classes, first, all_classes;
  float scale, smoothing, z_loss;
  bool by_packs;  // rows of both begin where packs do
};

template <int kLanes, typename T>
__global__ void __launch_bounds__(kBlockFor<kLanes>)
    CrossEntropyShardGradientKernel(GradientOfShard<T> a) {
  const int64_t row = int64_t{blockIdx.x} * (kBlockFor<kLanes> / kLanes) + threadIdx.x / kLanes;
  if (row >= a.rows) return;
  const int lane = threadIdx.x % kLanes;
  const int classes = static_cast<int>(a.classes), groups = classes / kGroup;
  const int tail = groups * kGroup + lane;
  const T* const logits = a.logits + row * a.classes;
  T* const dlogits = a.dlogits + row * a.classes;
  if (a.targets[row] < 0) {
    for (int c = lane; c < classes; c += kLanes) dlogits[c] = FromFloat<T>(0);
    return;
  }
  const RowNorm norm = a.norms[row];
  const float lse = logf(norm.sum) + norm.largest;
  const float scale = a.state == nullptr ? a.scale : a.scale * a.state->loss_scale;
  const float of_softmax = (a.z_loss > 0 ? 1.0f + 2.0f * a.z_loss * lse : 1.0f) * scale / norm.sum;
  const float elsewhere = a.smoothing / a.all_classes * scale;
  const auto gradient = [=](float x) { return ExpOf(x - norm.largest) * of_softmax - elsewhere; };
  // The lane that has the target reads its logit before it overwrites it.
  const int64_t target = a.targets[row] - a.first;
  const bool has_target =
      target >= 0 && target < a.classes && lane == LaneOf<kLanes>(static_cast<int>(target), groups);
  const float of_target = has_target ? ToFloat(logits[target]) : 0.0f;
  EachGroup<true, kLanes>(logits, lane, groups, a.by_packs, [&](Group<T>& group, int g) {
    group.Map(gradient);
    group.Write(dlogits + g * kGroup, a.by_packs);
  });
  if (tail < classes) dlogits[tail] = FromFloat<T>(gradient(ToFloat(logits[tail])));
  if (has_target) {
    dlogits[target] = FromFloat<T>(gradient(of_target) - (1.0f - a.smoothing) * scale);
  }
}

template <typename Op>
absl::Status CheckClasses(const Op& op) {
  if (op.classes <= INT_MAX / 2) return absl::OkStatus();
  return absl::UnimplementedError("cuda cross entropy of shards: too many classes");
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const CrossEntropyShard& op) {
  if (absl::Status ok = CheckClasses(op); !ok.ok()) return ok;
  return ForElement(op.logits.dtype, [&]<typename T>() {
    const ShardOfClasses<T> shard = {
        .logits = op.logits.As<T>(),
        .targets = op.targets.As<int32_t>(),
        .statistics = reinterpret_cast<ClassStatistics*>(op.statistics.As<float>()),
        .rows = op.rows,
        .classes = op.classes,
        .first = op.first,
        .with_mean = op.with_mean,
        .with_first_largest = op.with_first_largest,
        .by_packs = RowsBeginAtPacks(op.logits, op.classes)};
    return WithLanes(op.classes, [&]<int kLanes>() {
      return Kernel{.launch = [shard](Stream& stream) {
        Launch(stream, ShapeOfRows<kLanes>(shard.rows), CrossEntropyShardKernel<kLanes, T>, shard);
      }};
    });
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const CrossEntropyOfShards& op) {
  return Kernel{.launch = [op](Stream& stream) {
    const auto norms = OptionalAs<float>(op.norms);
    Launch(stream, ThreadForEach(op.rows), CrossEntropyOfShardsKernel,
           AllShardsOfClasses{.first = op.statistics.first.As<float>(),
                              .statistics = op.statistics.list,
                              .targets = op.targets.As<int32_t>(),
                              .losses = op.losses.As<float>(),
                              .z_losses = OptionalAs<float>(op.z_losses),
                              .correct = OptionalAs<float>(op.correct),
                              .norms = reinterpret_cast<RowNorm*>(norms),
                              .rows = op.rows,
                              .classes = op.classes,
                              .smoothing = op.smoothing,
                              .z_loss = op.z_loss});
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const CrossEntropyShardGradient& op) {
  if (absl::Status ok = CheckClasses(op); !ok.ok()) return ok;
  return ForElement(op.logits.dtype, [&]<typename T>() {
    const GradientOfShard<T> shard = {
        .logits = op.logits.As<T>(),
        .targets = op.targets.As<int32_t>(),
        .norms = reinterpret_cast<const RowNorm*>(op.norms.As<float>()),
        .dlogits = op.dlogits.As<T>(),
        .state = StepStateOf(op.state),
        .rows = op.rows,
        .classes = op.classes,
        .first = op.first,
        .all_classes = op.all_classes,
        .scale = op.scale,
        .smoothing = op.smoothing,
        .z_loss = op.z_loss,
        .by_packs =
            RowsBeginAtPacks(op.logits, op.classes) && RowsBeginAtPacks(op.dlogits, op.classes)};
    return WithLanes(op.classes, [&]<int kLanes>() {
      return Kernel{.launch = [shard](Stream& stream) {
        Launch(stream, ShapeOfRows<kLanes>(shard.rows), CrossEntropyShardGradientKernel<kLanes, T>,
               shard);
      }};
    });
  });
}

}  // namespace trainyard::kernels::cuda
