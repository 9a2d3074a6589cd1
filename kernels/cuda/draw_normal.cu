#include "kernels/ops/draw_normal.h"

#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/normal.h"
#include "kernels/random.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int64_t kMostDrawBlocks = 4096;

// A thread draws a pair at a time.
__global__ void __launch_bounds__(kThreads)
    DrawNormalKernel(float* x, uint64_t seed, uint64_t stream, int64_t first, int64_t n,
                     double std) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t pair = first / 2 + int64_t{blockIdx.x} * kThreads + threadIdx.x;
       2 * pair < first + n; pair += stride) {
    const Random4 r =
        Philox4x32(seed, static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32),
                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32));
    const NormalPair<double, uint64_t> made = NormalPairOf<double, uint64_t>(
        uint64_t{r.v[0]} << 32 | r.v[1], uint64_t{r.v[2]} << 32 | r.v[3]);
    const double radius = std * sqrt(made.square);
    const int64_t at = 2 * pair - first;
    if (at >= 0) x[at] = static_cast<float>(radius * made.cosine);
    if (at + 1 < n) x[at + 1] = static_cast<float>(radius * made.sine);
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const DrawNormal& op) {
  return Kernel{.launch = [op](Stream& stream) {
    const int64_t blocks = std::min(kMostDrawBlocks, CeilDiv(op.n / 2 + 1, kThreads));
    Launch(stream, {.grid = Blocks(blocks)}, DrawNormalKernel, op.x.As<float>(), op.seed, op.stream,
           op.first, op.n, op.std);
  }};
}

}  // namespace trainyard::kernels::cuda
