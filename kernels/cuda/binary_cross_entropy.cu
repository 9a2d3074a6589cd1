#include "kernels/ops/binary_cross_entropy.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/for_element.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

struct Arguments {
  const float* logits;  // [rows], and so are all
  const int32_t* targets;
  float* losses;
  float* correct;          // or null
  float* dlogits;          // may be logits, or null
  const StepState* state;  // or null
  int64_t rows;
  float scale;
};

__global__ void __launch_bounds__(kThreads) BinaryCrossEntropyKernel(Arguments a) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= a.rows) return;
  const int32_t target = a.targets[row];
  if (target > 1) __trap();  // the loader checked: an error of ours
  const bool counts = target >= 0;
  const float x = a.logits[row], click = target > 0 ? 1.0f : 0.0f;
  const float loss = fmaxf(x, 0.0f) - x * click + log1pf(expf(-fabsf(x)));
  a.losses[row] = counts ? loss : 0.0f;
  if (a.correct != nullptr) a.correct[row] = counts && (x > 0) == (target > 0) ? 1.0f : 0.0f;
  if (a.dlogits != nullptr) {
    const float scale = a.state == nullptr ? a.scale : a.scale * a.state->loss_scale;
    a.dlogits[row] = counts ? (1.0f / (1.0f + expf(-x)) - click) * scale : 0.0f;
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const BinaryCrossEntropy& op) {
  const Arguments arguments = {.logits = op.logits.As<float>(),
                               .targets = op.targets.As<int32_t>(),
                               .losses = op.losses.As<float>(),
                               .correct = OptionalAs<float>(op.correct),
                               .dlogits = OptionalAs<float>(op.dlogits),
                               .state = StepStateOf(op.state),
                               .rows = op.rows,
                               .scale = op.scale};
  return Kernel{.launch = [arguments](Stream& stream) {
    Launch(stream, ThreadForEach(arguments.rows), BinaryCrossEntropyKernel, arguments);
  }};
}

}  // namespace trainyard::kernels::cuda
