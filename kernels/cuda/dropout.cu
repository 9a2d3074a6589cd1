#include "kernels/ops/dropout.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/random.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

// Uniforms of one Philox call, for four neighbouring elements of a sample.
constexpr int kPerDraw = 4;

// A thread per draw. x, y: [samples, per_sample]; draws_each = ceil(per_sample / 4). kPackSize is 4
// if every draw is whole and aligned to packs of 4 elements, else 1.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads)
    DropoutKernel(const T* x, T* y, const StepState* state, uint32_t stream, int64_t draws,
                  int64_t draws_each, int64_t per_sample, float p, float scale) {
  constexpr int kPacks = kPerDraw / kPackSize;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= draws) return;
  const RowAndCol at = RowAndColOf(i, draws_each);
  const int64_t first = at.row * per_sample + at.col * kPerDraw;
  const int count = static_cast<int>(min(per_sample - at.col * kPerDraw, int64_t{kPerDraw}));
  Pack<T, kPackSize> packs[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (kPacks == 1 || k < count) packs[k].Load(x + first + k * kPackSize);
  }
  const Random4 random =
      StepRandom(state->seed, stream, state->step, state->first_sample + at.row, at.col);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float kept[kPackSize];
#pragma unroll
    for (int j = 0; j < kPackSize; ++j) {
      kept[j] = UnitUniform(random.v[k * kPackSize + j]) >= p ? packs[k][j] * scale : 0.0f;
    }
    packs[k].Set(kept);
    if (kPacks == 1 || k < count) packs[k].Store(y + first + k * kPackSize);
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const Dropout& op) {
  if (op.cols > 0) return absl::UnimplementedError("cuda dropout: of some columns alone");
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      const T* x = op.x.As<T>();
      T* y = op.y.As<T>();
      const int64_t draws_each = CeilDiv(op.per_sample, kPerDraw);
      const int64_t draws = op.samples * draws_each;
      const bool by_packs = op.per_sample % kPerDraw == 0 && Aligned(kPerDraw * sizeof(T), {x, y});
      Launch(stream, {.grid = Blocks(CeilDiv(draws, kThreads))},
             by_packs ? DropoutKernel<T, kPerDraw> : DropoutKernel<T, 1>, x, y,
             StepStateOf(op.state), op.stream, draws, draws_each, op.per_sample, op.p,
             1.0f / (1.0f - op.p));
    }};
  });
}

}  // namespace trainyard::kernels::cuda
