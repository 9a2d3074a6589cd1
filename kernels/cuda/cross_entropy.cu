#include "kernels/ops/cross_entropy.h"

#include <climits>
#include <cmath>

#include "kernels/cuda/class_rows.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fixed_sum.cuh"
#include "kernels/for_element.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

template <typename T>
struct CrossEntropyArguments {
  const T* logits;         // [rows, classes], rows `step` elements apart
  const int32_t* targets;  // [rows]
  float* losses;           // [rows]
  float* z_losses;         // [rows] or null
  float* correct;          // [rows] or null
  T* dlogits;              // as logits; may be logits, or null
  const StepState* state;  // or null
  int64_t rows, classes, step;
  float scale, smoothing, z_loss;
  bool by_packs;  // rows of both begin where packs do
};

// What a lane has seen of a row.
struct Seen {
  ExpSum exp;
  float above = 0;  // sum of logit - pivot, the row's first logit
  int beaten = 0;   // 1: by a larger logit than the target's, or an earlier one as large
};

// Goes over the row twice: first for the largest logit and the sum of exponentials, then, from the
// end back, for the gradient.
template <int kLanes, typename T>
__global__ void __launch_bounds__(kBlockFor<kLanes>)
    CrossEntropyKernel(CrossEntropyArguments<T> a) {
  constexpr int kRowsPerBlock = kBlockFor<kLanes> / kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  if (row >= a.rows) return;  // a whole warp; never part of a block that serves one row
  const int lane = threadIdx.x % kLanes;
  const int classes = static_cast<int>(a.classes), groups = classes / kGroup;
  const int tail = groups * kGroup + lane;  // this lane's class behind the groups, if it exists
  const T* const logits = a.logits + row * a.step;
  T* const dlogits = a.dlogits == nullptr ? nullptr : a.dlogits + row * a.step;
  const int target = a.targets[row];
  if (target >= classes)
    __trap();  // the loader checked: an error of ours, and a fault of the device
  if (target < 0) {
    if (lane == 0) {
      a.losses[row] = 0;
      if (a.z_losses != nullptr) a.z_losses[row] = 0;
      if (a.correct != nullptr) a.correct[row] = 0;
    }
    if (dlogits == nullptr) return;
    for (int c = lane; c < classes; c += kLanes) dlogits[c] = FromFloat<T>(0);
    return;
  }

  const float of_target = ToFloat(logits[target]);
  const float pivot = ToFloat(logits[0]);
  const float of_tail = tail < classes ? ToFloat(logits[tail]) : 0;
  Seen seen;
  const auto see = [&]<int kCount>(const auto& x, int at) {
    seen.exp.Take<kCount>(x);
    if (a.smoothing > 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) seen.above += x[i] - pivot;
    }
    if (a.correct == nullptr) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // No branches: the next group would wait for them.
      seen.beaten |= int{x[i] > of_target} | (int{x[i] == of_target} & int{at + i < target});
    }
  };
  EachGroup<true, kLanes>(logits, lane, groups, a.by_packs, [&](const Group<T>& group, int g) {
    see.template operator()<kGroup>(group, g * kGroup);
  });
  if (tail < classes) see.template operator()<1>(&of_tail, tail);

  const ExpSum exp = seen.exp.OfRow<kLanes>();
  const float largest = exp.largest, sum = exp.sum;
  // The mean of logits - largest.
  const float mean =
      a.smoothing > 0 ? RowSum<kLanes>(seen.above) / a.classes + (pivot - largest) : 0;
  const float beaten = a.correct != nullptr ? RowSum<kLanes>(static_cast<float>(seen.beaten)) : 0;
  const float lse = logf(sum) + largest;
  const float z = a.z_loss > 0 ? a.z_loss * lse * lse : 0.0f;

  if (lane == 0) {
    a.losses[row] =
        logf(sum) - ((1.0f - a.smoothing) * (of_target - largest) + a.smoothing * mean) + z;
    if (a.z_losses != nullptr) a.z_losses[row] = z;
    if (a.correct != nullptr) a.correct[row] = beaten == 0 && of_target == of_target ? 1.0f : 0.0f;
  }
  if (dlogits == nullptr) return;
  RowSync<kLanes>();  // every lane has read logits[target]; from here on it may be overwritten
  const float scale = a.state == nullptr ? a.scale : a.scale * a.state->loss_scale;
  const float of_softmax = (a.z_loss > 0 ? 1.0f + 2.0f * a.z_loss * lse : 1.0f) * scale / sum;
  const float elsewhere = a.smoothing / a.classes * scale;
  const auto gradient = [=](float x) { return ExpOf(x - largest) * of_softmax - elsewhere; };
  if (tail < classes) dlogits[tail] = FromFloat<T>(gradient(of_tail));
  EachGroup<false, kLanes>(logits, lane, groups, a.by_packs, [&](Group<T>& group, int g) {
    group.Map(gradient);
    group.Write(dlogits + g * kGroup, a.by_packs);
  });
  if (lane == LaneOf<kLanes>(target, groups)) {
    dlogits[target] = FromFloat<T>(gradient(of_target) - (1.0f - a.smoothing) * scale);
  }
}

struct InDouble {
  __device__ double operator()(float x) const { return x; }
};
struct IsTarget {
  __device__ double operator()(int32_t target) const { return target >= 0 ? 1 : 0; }
};

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const CrossEntropy& op) {
  if (op.classes > INT_MAX / 2)
    return absl::UnimplementedError("cuda cross entropy: too many classes");
  const bool by_packs =
      RowsBeginAtPacks(op.logits, op.row_stride()) && Aligned(kPackBytes, {op.dlogits.data});
  return ForElement(op.logits.dtype, [&]<typename T>() {
    const CrossEntropyArguments<T> arguments = {.logits = op.logits.As<T>(),
                                                .targets = op.targets.As<int32_t>(),
                                                .losses = op.losses.As<float>(),
                                                .z_losses = OptionalAs<float>(op.z_losses),
                                                .correct = OptionalAs<float>(op.correct),
                                                .dlogits = OptionalAs<T>(op.dlogits),
                                                .state = StepStateOf(op.state),
                                                .rows = op.rows,
                                                .classes = op.classes,
                                                .step = op.row_stride(),
                                                .scale = op.scale,
                                                .smoothing = op.smoothing,
                                                .z_loss = op.z_loss,
                                                .by_packs = by_packs};
    return WithLanes(op.classes, [&]<int kLanes>() {
      return Kernel{.launch = [arguments](Stream& stream) {
        Launch(stream, ShapeOfRows<kLanes>(arguments.rows), CrossEntropyKernel<kLanes, T>,
               arguments);
      }};
    });
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const CountTargets& op) {
  const int32_t* targets = op.targets.As<int32_t>();
  return FixedSum(IsTarget{}, targets, op.count.As<double>(), op.n, op.accumulate);
}

absl::StatusOr<Kernel> CudaDevice::Bind(const Sum& op) {
  return FixedSum(InDouble{}, op.x.As<float>(), op.sum.As<double>(), op.n, op.accumulate);
}

}  // namespace trainyard::kernels::cuda
