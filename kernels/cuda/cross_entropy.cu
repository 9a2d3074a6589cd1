#include "kernels/ops/cross_entropy.h"

#include <climits>
#include <cmath>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/fixed_sum.cuh"
#include "kernels/cuda/require.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

// Up to this many classes a warp serves a row; beyond, a block does.
constexpr int64_t kMaxWarpClasses = 1024;

// The largest logit so far and the first class that has it.
struct Largest {
  float value = -INFINITY;
  int at = INT_MAX;

  __device__ void Take(float other, int other_at) {
    if (other > value || (other == value && other_at < at)) {
      value = other;
      at = other_at;
    }
  }
};

// Reductions over the kLanes threads that serve one row: a warp or the whole block, all of which
// call.
template <int kLanes>
__device__ Largest RowLargest(Largest mine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(kAllLanes, mine.value, offset);
    const int at = __shfl_xor_sync(kAllLanes, mine.at, offset);
    mine.Take(value, at);
  }
  if constexpr (kLanes > kWarp) {
    __shared__ float values[kLanes / kWarp];
    __shared__ int places[kLanes / kWarp];
    if (threadIdx.x % kWarp == 0) {
      values[threadIdx.x / kWarp] = mine.value;
      places[threadIdx.x / kWarp] = mine.at;
    }
    __syncthreads();
    for (int warp = 0; warp < kLanes / kWarp; ++warp) mine.Take(values[warp], places[warp]);
  }
  return mine;
}

template <int kLanes>
__device__ float RowSum(float mine) {
  if constexpr (kLanes > kWarp) {
    return BlockSum<kLanes>(mine);
  } else {
    return WarpSum(mine);
  }
}

template <int kLanes>
__device__ void RowSync() {
  if constexpr (kLanes > kWarp) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

template <typename T>
struct CrossEntropyArguments {
  const T* logits;         // [rows, classes], rows `step` elements apart
  const int32_t* targets;  // [rows]
  float* losses;           // [rows]
  float* z_losses;         // [rows] or null
  float* correct;          // [rows] or null
  T* dlogits;              // likewise, may be logits, or null
  const StepState* state;  // or null
  int64_t rows, classes, step;
  float scale, smoothing, z_loss;
};

// Three passes over the row: largest, sum of exponentials, gradient. The second and third mostly
// hit the caches.
template <int kLanes, typename T>
__global__ void __launch_bounds__(kThreads) CrossEntropyKernel(CrossEntropyArguments<T> a) {
  constexpr int kRowsPerBlock = kThreads / kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  if (row >= a.rows) return;  // a whole warp; never part of a block that serves one row
  const int lane = threadIdx.x % kLanes;
  const int classes = static_cast<int>(a.classes);
  const T* logits = a.logits + row * a.step;
  const int target = a.targets[row];
  if (target >= classes)
    __trap();  // the loader checked: an error of ours, and a fault of the device
  const float of_target = target >= 0 ? ToFloat(logits[target]) : 0.0f;

  Largest mine;
  for (int c = lane; c < classes; c += kLanes) mine.Take(ToFloat(logits[c]), c);
  const Largest largest = RowLargest<kLanes>(mine);
  float partial = 0;
  for (int c = lane; c < classes; c += kLanes) {
    partial += expf(ToFloat(logits[c]) - largest.value);
  }
  const float sum = RowSum<kLanes>(partial);
  float mean = 0;  // of logits - largest
  if (a.smoothing > 0) {
    float below = 0;
    for (int c = lane; c < classes; c += kLanes) below += ToFloat(logits[c]) - largest.value;
    mean = RowSum<kLanes>(below) / a.classes;
  }
  const float lse = logf(sum) + largest.value;
  const float z = a.z_loss > 0 ? a.z_loss * lse * lse : 0.0f;

  if (lane == 0) {
    const float of_targets =
        (1.0f - a.smoothing) * (of_target - largest.value) + a.smoothing * mean;
    a.losses[row] = target >= 0 ? logf(sum) - of_targets + z : 0.0f;
    if (a.z_losses != nullptr) a.z_losses[row] = target >= 0 ? z : 0.0f;
    if (a.correct != nullptr) a.correct[row] = largest.at == target ? 1.0f : 0.0f;
  }
  if (a.dlogits == nullptr) return;
  RowSync<kLanes>();  // every lane has read logits[target]; from here on it may be overwritten
  const float scale = a.state == nullptr ? a.scale : a.scale * a.state->loss_scale;
  T* dlogits = a.dlogits + row * a.step;
  const float of_z = a.z_loss > 0 ? 1.0f + 2.0f * a.z_loss * lse : 1.0f;
  const float everywhere = a.smoothing / a.classes;
  for (int c = lane; c < classes; c += kLanes) {
    const float softmax = expf(ToFloat(logits[c]) - largest.value) / sum;
    const float t = c == target ? 1.0f - a.smoothing + everywhere : everywhere;
    dlogits[c] = FromFloat<T>(target >= 0 ? (softmax * of_z - t) * scale : 0.0f);
  }
}

struct Identity {
  __device__ double operator()(float x) const { return x; }
};
struct IsTarget {
  __device__ double operator()(int32_t target) const { return target >= 0 ? 1 : 0; }
};

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const CrossEntropy& op) {
  const DType type = op.logits.dtype;
  absl::Status status = RequireTypes(
      "cross entropy", {{"logits", op.logits, type},
                        {.name = "targets", .buffer = op.targets, .dtype = DType::kI32},
                        {"losses", op.losses},
                        {.name = "z_losses", .buffer = op.z_losses, .optional = true},
                        {.name = "correct", .buffer = op.correct, .optional = true},
                        {"dlogits", op.dlogits, type, true}});
  status.Update(RequirePositive("cross entropy", {{"rows", op.rows}, {"classes", op.classes}}));
  status.Update(RequireRowStride("cross entropy", op.step(), op.classes));
  if (!status.ok()) return status;
  if (op.classes > INT_MAX / 2)
    return absl::UnimplementedError("cuda cross entropy: too many classes");
  return ForElement("cross entropy", type, [&]<typename T>() {
    const CrossEntropyArguments<T> arguments = {.logits = op.logits.As<T>(),
                                                .targets = op.targets.As<int32_t>(),
                                                .losses = op.losses.As<float>(),
                                                .z_losses = OptionalAs<float>(op.z_losses),
                                                .correct = OptionalAs<float>(op.correct),
                                                .dlogits = OptionalAs<T>(op.dlogits),
                                                .state = static_cast<const StepState*>(op.state),
                                                .rows = op.rows,
                                                .classes = op.classes,
                                                .step = op.step(),
                                                .scale = op.scale,
                                                .smoothing = op.smoothing,
                                                .z_loss = op.z_loss};
    if (op.classes <= kMaxWarpClasses) {
      return Kernel{.launch = [arguments](Stream& stream) {
        Launch(stream, {.grid = Blocks(CeilDiv(arguments.rows, kThreads / kWarp))},
               CrossEntropyKernel<kWarp, T>, arguments);
      }};
    }
    return Kernel{.launch = [arguments](Stream& stream) {
      Launch(stream, {.grid = Blocks(arguments.rows)}, CrossEntropyKernel<kThreads, T>, arguments);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const CountTargets& op) {
  const absl::Status types = RequireTypes(
      "count targets", {{.name = "targets", .buffer = op.targets, .dtype = DType::kI32},
                        {.name = "count", .buffer = op.count, .dtype = DType::kF64}});
  if (!types.ok()) return types;
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchFixedSum(stream, IsTarget{}, op.targets.As<int32_t>(),
                                     op.count.As<double>(), op.n, op.accumulate, stream.scratch);
                    },
                .scratch_bytes = FixedSumScratch(op.n)};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const Sum& op) {
  const absl::Status types =
      RequireTypes("sum", {{"x", op.x}, {.name = "sum", .buffer = op.sum, .dtype = DType::kF64}});
  if (!types.ok()) return types;
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchFixedSum(stream, Identity{}, op.x.As<float>(), op.sum.As<double>(),
                                     op.n, op.accumulate, stream.scratch);
                    },
                .scratch_bytes = FixedSumScratch(op.n)};
}

}  // namespace trainyard::kernels::cuda
