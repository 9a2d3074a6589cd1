#include "kernels/ops/optimizer.h"

#include <cmath>

#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fixed_sum.cuh"
#include "kernels/cuda/require.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

struct Square {
  __device__ double operator()(float x) const { return static_cast<double>(x) * x; }
};

// A NaN norm gives a NaN scale, as in PyTorch: a broken gradient is not hidden. count may be null.
__global__ void ClipScaleKernel(const double* sum, const double* count, float* norm, float* scale,
                                double rows, float max_norm) {
  const double factor = count != nullptr && count[0] > 0 ? rows / count[0] : 1.0;
  const float total = static_cast<float>(sqrt(sum[0]) * factor);
  const float ratio = max_norm / (total + 1e-6f);
  norm[0] = total;
  scale[0] = static_cast<float>(factor) * (isinf(max_norm) || ratio > 1.0f ? 1.0f : ratio);
}

// velocity and grad_scale may be null.
__global__ void __launch_bounds__(kThreads)
    SgdKernel(float* w, const float* grad, float* velocity, const float* grad_scale,
              const StepState* state, int64_t n, float momentum, float weight_decay) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const float scale = grad_scale != nullptr ? grad_scale[0] : 1.0f;
  float g = grad[i] * scale + weight_decay * w[i];
  if (velocity != nullptr) {
    if (state->step > 0) g = momentum * velocity[i] + g;
    velocity[i] = g;
  }
  w[i] -= state->learning_rate * g;
}

struct AdamWArguments {
  float* w;  // [n], and so are grad, m, v
  const float* grad;
  float* m;
  float* v;
  const float* grad_scale;  // [1] or null
  const StepState* state;
  int64_t n;
  AdamWHyper hyper;
};

__global__ void __launch_bounds__(kThreads) AdamWKernel(AdamWArguments a) {
  __shared__ float step_size, inverse_root2;
  if (threadIdx.x == 0) BiasCorrections(a.hyper, *a.state, step_size, inverse_root2);
  __syncthreads();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.n) return;
  const float g = a.grad_scale != nullptr ? a.grad[i] * a.grad_scale[0] : a.grad[i];
  AdamWElement(g, a.hyper, a.state->learning_rate, step_size, inverse_root2, a.w[i], a.m[i],
               a.v[i]);
}

const float* OptionalF32(const Buffer& buffer) { return buffer ? buffer.As<float>() : nullptr; }

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const SquaredNorm& op) {
  const absl::Status types = RequireTypes(
      "squared norm", {{"x", op.x}, {.name = "sum", .buffer = op.sum, .dtype = DType::kF64}});
  if (!types.ok()) return types;
  return Kernel{.launch =
                    [op](Stream& stream) {
                      LaunchFixedSum(stream, Square{}, op.x.As<float>(), op.sum.As<double>(), op.n,
                                     op.accumulate, stream.scratch);
                    },
                .scratch_bytes = FixedSumScratch(op.n)};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const ClipScale& op) {
  const absl::Status types =
      RequireTypes("clip scale", {{.name = "sum", .buffer = op.sum, .dtype = DType::kF64},
                                  {"count", op.count, DType::kF64, true},
                                  {"norm", op.norm},
                                  {"scale", op.scale}});
  if (!types.ok()) return types;
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, {.grid = Blocks(1), .block = dim3(1)}, ClipScaleKernel, op.sum.As<double>(),
           op.count ? op.count.As<double>() : nullptr, op.norm.As<float>(), op.scale.As<float>(),
           static_cast<double>(op.rows), op.max_norm);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const SgdStep& op) {
  const bool with_velocity = op.momentum > 0;
  absl::Status status =
      RequireTypes("sgd", {{"w", op.w},
                           {"grad", op.grad},
                           {.name = "velocity", .buffer = op.velocity, .optional = !with_velocity},
                           {.name = "grad_scale", .buffer = op.grad_scale, .optional = true}});
  if (!status.ok()) return status;
  if (op.state == nullptr) return absl::InvalidArgumentError("sgd: state is missing");
  return Kernel{.launch = [op, with_velocity](Stream& stream) {
    if (op.n <= 0) return;
    Launch(stream, {.grid = Blocks(CeilDiv(op.n, kThreads))}, SgdKernel, op.w.As<float>(),
           op.grad.As<float>(), with_velocity ? op.velocity.As<float>() : nullptr,
           OptionalF32(op.grad_scale), static_cast<const StepState*>(op.state), op.n, op.momentum,
           op.weight_decay);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const AdamWStep& op) {
  absl::Status status =
      RequireTypes("adamw", {{"w", op.w},
                             {"grad", op.grad},
                             {"m", op.m},
                             {"v", op.v},
                             {.name = "grad_scale", .buffer = op.grad_scale, .optional = true}});
  if (!status.ok()) return status;
  if (op.state == nullptr) return absl::InvalidArgumentError("adamw: state is missing");
  const AdamWArguments arguments = {.w = op.w.As<float>(),
                                    .grad = op.grad.As<float>(),
                                    .m = op.m.As<float>(),
                                    .v = op.v.As<float>(),
                                    .grad_scale = OptionalF32(op.grad_scale),
                                    .state = static_cast<const StepState*>(op.state),
                                    .n = op.n,
                                    .hyper = {.beta1 = op.beta1,
                                              .beta2 = op.beta2,
                                              .epsilon = op.epsilon,
                                              .weight_decay = op.weight_decay}};
  return Kernel{.launch = [arguments](Stream& stream) {
    if (arguments.n <= 0) return;
    Launch(stream, {.grid = Blocks(CeilDiv(arguments.n, kThreads))}, AdamWKernel, arguments);
  }};
}

}  // namespace trainyard::kernels::cuda
