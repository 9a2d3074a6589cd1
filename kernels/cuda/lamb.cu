#include "kernels/ops/lamb.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fixed_sum.cuh"
#include "kernels/cuda/require.h"
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
};

struct Corrections {
  float inverse_c1, inverse_root2;
};

// Once per block, in double: b^t loses its digits in fp32 for large t.
__device__ Corrections CorrectionsOf(const LambArguments& a) {
  __shared__ Corrections of_block;
  if (threadIdx.x == 0) {
    const double t = static_cast<double>(a.state->updates + 1);
    of_block.inverse_c1 = static_cast<float>(1 / (1 - pow(static_cast<double>(a.beta1), t)));
    of_block.inverse_root2 = static_cast<float>(1 / sqrt(1 - pow(static_cast<double>(a.beta2), t)));
  }
  __syncthreads();
  return of_block;
}

__device__ float UpdateOf(const LambArguments& a, const Corrections& c, int64_t i) {
  return a.m[i] * c.inverse_c1 / (sqrtf(a.v[i]) * c.inverse_root2 + a.epsilon) +
         a.weight_decay * a.w[i];
}

// Updates m and v. With partials, [2, blocks]: the sums of squares of w and of u over what the
// block saw; without, w steps as well.
__global__ void __launch_bounds__(kThreads) LambMomentsKernel(LambArguments a, double* partials) {
  if (!IsTaken(a.grad_scale)) return;
  const Corrections c = CorrectionsOf(a);
  const float scale = a.grad_scale != nullptr ? a.grad_scale[0] : 1.0f;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  double of_w = 0, of_u = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < a.n; i += stride) {
    const float g = a.grad[i] * scale;
    a.m[i] = a.beta1 * a.m[i] + (1.0f - a.beta1) * g;
    a.v[i] = a.beta2 * a.v[i] + (1.0f - a.beta2) * g * g;
    const float w = a.w[i], u = UpdateOf(a, c, i);
    if (partials == nullptr) {
      a.w[i] = w - a.state->learning_rate * a.learning_rate_scale * u;
    } else {
      of_w += static_cast<double>(w) * w;
      of_u += static_cast<double>(u) * u;
    }
  }
  if (partials == nullptr) return;
  of_w = BlockSum<kThreads>(of_w);
  of_u = BlockSum<kThreads>(of_u);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = of_w;
    partials[gridDim.x + blockIdx.x] = of_u;
  }
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

__global__ void __launch_bounds__(kThreads) LambKernel(LambArguments a, const float* ratio) {
  if (!IsTaken(a.grad_scale)) return;
  const Corrections c = CorrectionsOf(a);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.n) return;
  a.w[i] -= a.state->learning_rate * a.learning_rate_scale * ratio[0] * UpdateOf(a, c, i);
}

void LaunchLamb(Stream& stream, const LambArguments& a, bool adapt) {
  const int64_t blocks = SumBlocks(a.n);
  double* partials = adapt ? static_cast<double*>(stream.scratch) : nullptr;
  Launch(stream, {.grid = Blocks(blocks)}, LambMomentsKernel, a, partials);
  if (!adapt) return;
  float* ratio = reinterpret_cast<float*>(partials + 2 * blocks);
  Launch(stream, {.grid = Blocks(1)}, LambRatioKernel, partials, a.grad_scale, ratio, blocks);
  Launch(stream, {.grid = Blocks(CeilDiv(a.n, kThreads))}, LambKernel, a, ratio);
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const LambStep& op) {
  absl::Status status =
      RequireTypes("lamb", {{"w", op.w},
                            {"grad", op.grad},
                            {"m", op.m},
                            {"v", op.v},
                            {.name = "grad_scale", .buffer = op.grad_scale, .optional = true}});
  status.Update(RequirePositive("lamb", {{"n", op.n}}));
  if (!status.ok()) return status;
  if (op.state == nullptr) return absl::InvalidArgumentError("lamb: state is missing");
  const LambArguments arguments = {
      .w = op.w.As<float>() + op.offset,
      .grad = op.grad.As<float>() + op.offset,
      .m = op.m.As<float>() + op.offset,
      .v = op.v.As<float>() + op.offset,
      .grad_scale = op.grad_scale ? op.grad_scale.As<float>() : nullptr,
      .state = static_cast<const StepState*>(op.state),
      .n = op.n,
      .beta1 = op.beta1,
      .beta2 = op.beta2,
      .epsilon = op.epsilon,
      .weight_decay = op.weight_decay,
      .learning_rate_scale = op.learning_rate_scale};
  return Kernel{.launch = [arguments, adapt = op.adapt](
                              Stream& stream) { LaunchLamb(stream, arguments, adapt); },
                .scratch_bytes = op.adapt ? (2 * SumBlocks(op.n) + 1) * sizeof(double) : 0};
}

}  // namespace trainyard::kernels::cuda
