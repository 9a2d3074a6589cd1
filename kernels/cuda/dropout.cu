#include "kernels/ops/dropout.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/require.h"
#include "kernels/random.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kPerDraw =
    4;  // uniforms of one Philox call, for four neighbouring elements of a sample

// A thread per draw. x, y: [samples, per_sample]; draws_each = ceil(per_sample / 4).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DropoutKernel(const T* x, T* y, const StepState* state, uint32_t stream, int64_t draws,
                  int64_t draws_each, int64_t per_sample, float p) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= draws) return;
  const int64_t sample = at / draws_each, draw = at % draws_each;
  const Random4 random =
      StepRandom(state->seed, stream, state->step, state->first_sample + sample, draw);
  const float scale = 1.0f / (1.0f - p);
  const int64_t first = draw * kPerDraw;
#pragma unroll
  for (int j = 0; j < kPerDraw; ++j) {
    if (first + j >= per_sample) break;
    const int64_t i = sample * per_sample + first + j;
    y[i] = FromFloat<T>(UnitUniform(random.v[j]) >= p ? ToFloat(x[i]) * scale : 0.0f);
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const Dropout& op) {
  const DType type = op.x.dtype;
  absl::Status status = RequireTypes("dropout", {{"x", op.x, type}, {"y", op.y, type}});
  status.Update(
      RequirePositive("dropout", {{"samples", op.samples}, {"per_sample", op.per_sample}}));
  if (!status.ok()) return status;
  if (op.state == nullptr) return absl::InvalidArgumentError("dropout: state is missing");
  if (!(op.p >= 0 && op.p < 1)) return absl::InvalidArgumentError("dropout: p is not in [0, 1)");
  return ForElement("dropout", type, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      const int64_t draws_each = CeilDiv(op.per_sample, kPerDraw);
      const int64_t draws = op.samples * draws_each;
      Launch(stream, {.grid = Blocks(CeilDiv(draws, kThreads))}, DropoutKernel<T>, op.x.As<T>(),
             op.y.As<T>(), static_cast<const StepState*>(op.state), op.stream, draws, draws_each,
             op.per_sample, op.p);
    }};
  });
}

}  // namespace trainyard::kernels::cuda
