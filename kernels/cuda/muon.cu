#include "kernels/ops/muon.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/for_element.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

__device__ int64_t Element() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// grad_scale may be null.
__global__ void __launch_bounds__(kThreads)
    MuonMomentumKernel(const float* grad, float* velocity, float* y, const float* grad_scale,
                       int64_t n, float momentum, bool nesterov) {
  const int64_t i = Element();
  if (i >= n || !IsTaken(grad_scale)) return;
  const float g = grad_scale != nullptr ? grad[i] * grad_scale[0] : grad[i];
  const float v = velocity[i] + (1.0f - momentum) * (g - velocity[i]);
  velocity[i] = v;
  y[i] = nesterov ? g + momentum * (v - g) : v;
}

__global__ void __launch_bounds__(kThreads)
    DivideByNormKernel(float* x, const double* sum, int64_t n, float epsilon) {
  const int64_t i = Element();
  if (i < n) x[i] *= static_cast<float>(1 / (sqrt(sum[0]) + epsilon));
}

__global__ void __launch_bounds__(kThreads)
    NewtonSchulzKernel(const float* x, float* y, int64_t n, float a, float b, float c) {
  const int64_t i = Element();
  if (i >= n * n) return;
  const float polynomial = b * x[i] + c * y[i];
  y[i] = i % (n + 1) == 0 ? a + polynomial : polynomial;
}

__global__ void __launch_bounds__(kThreads)
    MuonStepKernel(float* w, const float* x, const float* grad_scale, const StepState* state,
                   int64_t n, float scale, float weight_decay, float learning_rate_scale) {
  const int64_t i = Element();
  if (i >= n || !IsTaken(grad_scale)) return;
  const float lr = state->learning_rate * learning_rate_scale;
  w[i] = (1.0f - lr * weight_decay) * w[i] - lr * scale * x[i];
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const MuonMomentum& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, ThreadForEach(op.n), MuonMomentumKernel, op.grad.As<float>() + op.offset,
           op.velocity.As<float>() + op.offset, op.y.As<float>(), OptionalAs<float>(op.grad_scale),
           op.n, op.momentum, op.nesterov);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const DivideByNorm& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, ThreadForEach(op.n), DivideByNormKernel, op.x.As<float>(), op.sum.As<double>(),
           op.n, op.epsilon);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const NewtonSchulz& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, ThreadForEach(op.n * op.n), NewtonSchulzKernel, op.x.As<float>(),
           op.y.As<float>(), op.n, op.a, op.b, op.c);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const MuonStep& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, ThreadForEach(op.n), MuonStepKernel, op.w.As<float>() + op.offset,
           op.x.As<float>(), OptionalAs<float>(op.grad_scale), StepStateOf(op.state), op.n,
           op.scale, op.weight_decay, op.learning_rate_scale);
  }};
}

}  // namespace trainyard::kernels::cuda
