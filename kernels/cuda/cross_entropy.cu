#include "kernels/ops/cross_entropy.h"

#include <climits>
#include <cmath>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/fast_math.cuh"
#include "kernels/cuda/fixed_sum.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

// A warp serves a row of up to kMostWarpClasses classes, a block of kThreads one of up to
// kMostBlockClasses, a block of kWideBlock a longer one. Two wide blocks fill a multiprocessor: the
// rows that a GPU works on at once then stay in its L2 cache from their first reading to their
// gradient.
constexpr int64_t kMostWarpClasses = 1024, kMostBlockClasses = 8192;
constexpr int kWideBlock = 512;
template <int kLanes>
constexpr int kBlockFor = kLanes < kThreads ? kThreads : kLanes;

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

// Neighbouring classes that a lane takes together. Which lane takes a class, and in which order,
// depends on its place in the row alone, so that the bits depend neither on the element type nor on
// where the row lies. Classes behind the last whole group go one by one.
constexpr int kGroup = 8;

template <typename T>
class Group {
  static constexpr int kPacks = kGroup / kPack<T>;

 public:
  __device__ void Read(const T* at, bool by_packs) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      by_packs ? packs_[p].Load(at + p * kPack<T>) : packs_[p].Gather(at + p * kPack<T>);
    }
  }
  __device__ void Write(T* at, bool by_packs) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      by_packs ? packs_[p].Store(at + p * kPack<T>) : packs_[p].Scatter(at + p * kPack<T>);
    }
  }

  __device__ float operator[](int i) const { return packs_[i / kPack<T>][i % kPack<T>]; }

  // Replaces each element by f of it.
  template <typename F>
  __device__ void Map(F f) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float values[kPack<T>];
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) values[j] = f(packs_[p][j]);
      packs_[p].Set(values);
    }
  }

 private:
  Pack<T, kPack<T>> packs_[kPacks];
};

// Calls f(group, its number) for the groups of a row that this lane has. With by_packs it reads 64
// bytes in each round before it calls f, and without kForward the rounds go from the row's end
// back.
template <bool kForward, int kLanes, typename T, typename F>
__device__ void EachGroup(const T* row, int lane, int groups, bool by_packs, F f) {
  constexpr int kAtOnce = 64 / static_cast<int>(kGroup * sizeof(T)), kOfRound = kAtOnce * kLanes;
  if (!by_packs) {
#pragma unroll 1
    for (int g = lane; g < groups; g += kLanes) {
      Group<T> group;
      group.Read(row + g * kGroup, false);
      f(group, g);
    }
    return;
  }
  const int last = (groups - 1) / kOfRound * kOfRound;
#pragma unroll 1
  for (int done = 0; done < groups; done += kOfRound) {
    const int g = (kForward ? done : last - done) + lane;
    Group<T> read[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (g + i * kLanes < groups) read[i].Read(row + (g + i * kLanes) * kGroup, true);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (g + i * kLanes < groups) f(read[i], g + i * kLanes);
    }
  }
}

// The lane that has class c.
template <int kLanes>
__device__ int LaneOf(int c, int groups) {
  return c < groups * kGroup ? c / kGroup % kLanes : c - groups * kGroup;
}

// Reductions over the kLanes threads that serve one row: a warp or the whole block, all of which
// call.
template <int kLanes>
__device__ float RowSum(float mine) {
  if constexpr (kLanes > kWarp) {
    return BlockSum<kLanes>(mine);
  } else {
    return WarpSum(mine);
  }
}

template <int kLanes>
__device__ float RowLargest(float mine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    mine = fmaxf(mine, __shfl_xor_sync(kAllLanes, mine, offset));
  }
  if constexpr (kLanes > kWarp) {
    __shared__ float of_warp[kLanes / kWarp];
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kLanes / kWarp; ++warp) mine = fmaxf(mine, of_warp[warp]);
  }
  return mine;
}

template <int kLanes>
__device__ void RowSync() {
  if constexpr (kLanes > kWarp) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__device__ float ExpOf(float difference) { return Exp2(difference * kLog2E); }

// What a lane has seen of a row.
struct Seen {
  float largest = -INFINITY;
  float sum = 0;    // of exp(logit - largest)
  float above = 0;  // sum of logit - pivot, the row's first logit
  int beaten = 0;   // 1: by a larger logit than the target's, or an earlier one as large

  // Takes the logits x[0 .. kCount) into largest and sum.
  template <int kCount, typename X>
  __device__ void TakeExp(const X& x) {
    float grown = largest;
#pragma unroll
    for (int i = 0; i < kCount; ++i) grown = fmaxf(grown, x[i]);
    const float from = grown == -INFINITY ? 0 : grown;
    sum *= ExpOf(largest - from);
    largest = grown;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += ExpOf(x[i] - from);
  }
};

// Goes over the row twice: first for the largest logit and the sum of exponentials, which shrinks
// whenever a larger logit comes (Milakov & Gimelshein 2018, arXiv:1805.02867), then, from the end
// back, for the gradient.
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
    seen.TakeExp<kCount>(x);
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

  const float largest = RowLargest<kLanes>(seen.largest);
  const float shrink = seen.largest == -INFINITY ? 1 : ExpOf(seen.largest - largest);
  const float sum = RowSum<kLanes>(seen.sum * shrink);
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

// Whether all rows of logits and of their gradient begin where packs do.
bool RowsInPacks(const CrossEntropy& op) {
  return Aligned(kPackBytes, {op.logits.data, op.dlogits.data}) &&
         op.row_stride() * SizeOf(op.logits.dtype) % kPackBytes == 0;
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const CrossEntropy& op) {
  if (op.classes > INT_MAX / 2)
    return absl::UnimplementedError("cuda cross entropy: too many classes");
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
                                                .by_packs = RowsInPacks(op)};
    const auto launch = [&]<int kLanes>() {
      return Kernel{.launch = [arguments](Stream& stream) {
        constexpr int kBlock = kBlockFor<kLanes>;
        Launch(stream,
               {.grid = Blocks(CeilDiv(arguments.rows, kBlock / kLanes)), .block = dim3(kBlock)},
               CrossEntropyKernel<kLanes, T>, arguments);
      }};
    };
    if (op.classes <= kMostWarpClasses) return launch.template operator()<kWarp>();
    if (op.classes <= kMostBlockClasses) return launch.template operator()<kThreads>();
    return launch.template operator()<kWideBlock>();
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const CountTargets& op) {
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchFixedSum(stream, IsTarget{}, op.targets.As<int32_t>(),
                                     op.count.As<double>(), op.n, op.accumulate, stream.scratch);
                    },
                .scratch_bytes = FixedSumBytes(op.n)};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const Sum& op) {
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchFixedSum(stream, InDouble{}, op.x.As<float>(), op.sum.As<double>(),
                                     op.n, op.accumulate, stream.scratch);
                    },
                .scratch_bytes = FixedSumBytes(op.n)};
}

}  // namespace trainyard::kernels::cuda
