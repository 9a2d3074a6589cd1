#include "kernels/ops/lamb.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fixed_sum.cuh"
#include "kernels/for_element.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

struct LambArguments {
  float* w;  // [n], and so are grad, m, v
  const float* grad;
  float* m;
  float* v;
  const float* grad_scale;  // [1] or null
  const StepState* state;
  int64_t n;
  float beta1, beta2, epsilon, weight_decay, learning_rate_scale;
  bool by_packs;
};

struct Corrections {
  float inverse_c1, inverse_root2;
};

// Once per block, in double: b^t loses its digits in fp32 for large t. A warp for each beta.
__device__ Corrections CorrectionsOf(const LambArguments& a) {
  __shared__ Corrections of_block;
  if (threadIdx.x == 0 || threadIdx.x == kWarp) {
    const bool first = threadIdx.x == 0;
    const double correction = 1 - pow(static_cast<double>(first ? a.beta1 : a.beta2),
                                      static_cast<double>(a.state->updates + 1));
    if (first) {
      of_block.inverse_c1 = static_cast<float>(1 / correction);
    } else {
      of_block.inverse_root2 = static_cast<float>(1 / sqrt(correction));
    }
  }
  __syncthreads();
  return of_block;
}

__device__ float UpdateOf(const LambArguments& a, const Corrections& c, float w, float m, float v) {
  return m * c.inverse_c1 / (sqrtf(v) * c.inverse_root2 + a.epsilon) + a.weight_decay * w;
}

// Steps the elements [at, at + kCount): updates the moments, and w unless sums_only, and adds to
// the sums of squares of w and u.
template <int kCount>
__device__ void StepMoments(const LambArguments& a, const Corrections& c, int64_t at, float scale,
                            bool sums_only, double& of_w, double& of_u) {
  Pack<float, kCount> w, grad, m, v;
  w.Load(a.w + at);
  grad.Load(a.grad + at);
  m.Load(a.m + at);
  v.Load(a.v + at);
  const float rate = a.state->learning_rate * a.learning_rate_scale;
  float new_w[kCount], new_m[kCount], new_v[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float g = grad[j] * scale;
    new_m[j] = a.beta1 * m[j] + (1.0f - a.beta1) * g;
    new_v[j] = a.beta2 * v[j] + (1.0f - a.beta2) * g * g;
    const float u = UpdateOf(a, c, w[j], new_m[j], new_v[j]);
    new_w[j] = w[j] - rate * u;
    of_w += static_cast<double>(w[j]) * w[j];
    of_u += static_cast<double>(u) * u;
  }
  m.Set(new_m);
  m.Store(a.m + at);
  v.Set(new_v);
  v.Store(a.v + at);
  if (sums_only) return;
  w.Set(new_w);
  w.Store(a.w + at);
}

// Updates m and v. With `partials`, [2, blocks], a block writes its sums of squares of w and of u,
// and the first block also the corrections; without, w is updated as well. The order of the sums is
// that of quads, aligned or not.
__global__ void __launch_bounds__(kThreads)
    LambMomentsKernel(LambArguments a, double* partials, Corrections* corrections) {
  if (!IsTaken(a.grad_scale)) return;
  const Corrections c = CorrectionsOf(a);
  const float scale = a.grad_scale != nullptr ? a.grad_scale[0] : 1.0f;
  const bool sums_only = partials != nullptr;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kThreads, quads = a.n / kStepPack;
  double of_w = 0, of_u = 0;
  for (int64_t i = thread; i < quads; i += stride) {
    if (a.by_packs) {
      StepMoments<kStepPack>(a, c, i * kStepPack, scale, sums_only, of_w, of_u);
    } else {
      for (int64_t j = i * kStepPack; j < (i + 1) * kStepPack; ++j) {
        StepMoments<1>(a, c, j, scale, sums_only, of_w, of_u);
      }
    }
  }
  if (quads * kStepPack + thread < a.n) {
    StepMoments<1>(a, c, quads * kStepPack + thread, scale, sums_only, of_w, of_u);
  }
  if (!sums_only) return;
  of_w = BlockSum<kThreads>(of_w);
  of_u = BlockSum<kThreads>(of_u);
  if (threadIdx.x > 0) return;
  partials[blockIdx.x] = of_w;
  partials[gridDim.x + blockIdx.x] = of_u;
  if (blockIdx.x == 0) *corrections = c;
}

// ratio[0] = |w| / |u|, 1 when either is 0. One block.
__global__ void __launch_bounds__(kThreads)
    LambRatioKernel(const double* partials, const float* grad_scale, float* ratio, int64_t blocks) {
  if (!IsTaken(grad_scale)) return;
  double of_w = 0, of_u = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) {
    of_w += partials[i];
    of_u += partials[blocks + i];
  }
  of_w = BlockSum<kThreads>(of_w);
  of_u = BlockSum<kThreads>(of_u);
  if (threadIdx.x == 0) {
    ratio[0] = of_w > 0 && of_u > 0 ? static_cast<float>(sqrt(of_w / of_u)) : 1.0f;
  }
}

// What lies behind the partial sums in scratch.
struct Found {
  float ratio;
  Corrections corrections;
};
static_assert(sizeof(Found) <= kFoundBytes);

__global__ void __launch_bounds__(kThreads) LambKernel(LambArguments a, const Found* found) {
  EachStep(a.n, a.by_packs, [&]<int kCount>(PackSize<kCount>, int64_t at) {
    Pack<float, kCount> w, m, v;
    w.Load(a.w + at);
    m.Load(a.m + at);
    v.Load(a.v + at);
    const Found f = *found;
    const float rate = a.state->learning_rate * a.learning_rate_scale * f.ratio;
    if (!IsTaken(a.grad_scale)) return;
    float stepped[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      stepped[j] = w[j] - rate * UpdateOf(a, f.corrections, w[j], m[j], v[j]);
    }
    w.Set(stepped);
    w.Store(a.w + at);
  });
}

void LaunchLamb(Stream& stream, const LambArguments& a, bool adapt) {
  const int64_t blocks = SumBlocks(a.n);
  if (!adapt) {
    Launch(stream, {.grid = Blocks(blocks)}, LambMomentsKernel, a, nullptr, nullptr);
    return;
  }
  double* partials = static_cast<double*>(stream.scratch);
  Found* found = reinterpret_cast<Found*>(partials + 2 * blocks);
  Launch(stream, {.grid = Blocks(blocks)}, LambMomentsKernel, a, partials, &found->corrections);
  Launch(stream, {.grid = Blocks(1)}, LambRatioKernel, partials, a.grad_scale, &found->ratio,
         blocks);
  Launch(stream, {.grid = StepBlocks(a.n)}, LambKernel, a, found);
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const LambStep& op) {
  LambArguments arguments = {.w = op.w.As<float>() + op.offset,
                             .grad = op.grad.As<float>() + op.offset,
                             .m = op.m.As<float>() + op.offset,
                             .v = op.v.As<float>() + op.offset,
                             .grad_scale = OptionalAs<float>(op.grad_scale),
                             .state = StepStateOf(op.state),
                             .n = op.n,
                             .beta1 = op.beta1,
                             .beta2 = op.beta2,
                             .epsilon = op.epsilon,
                             .weight_decay = op.weight_decay,
                             .learning_rate_scale = op.learning_rate_scale};
  arguments.by_packs = Aligned(kPackBytes, {arguments.w, arguments.grad, arguments.m, arguments.v});
  return Kernel{.launch = [arguments, adapt = op.adapt](
                              Stream& stream) { LaunchLamb(stream, arguments, adapt); },
                .scratch_bytes = LambBytes(op.n, op.adapt)};
}

}  // namespace trainyard::kernels::cuda
