#include "kernels/ops/norm_leaves.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"

namespace trainyard::kernels::cuda {
namespace {

// A block for each leaf.
__global__ void __launch_bounds__(kThreads)
    NormLeavesKernel(const float* x, double* leaves, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kNormLeaf;
  const int64_t end = min(n, first + kNormLeaf);
  double sum = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    sum += static_cast<double>(x[i]) * x[i];
  }
  sum = BlockSum<kThreads>(sum);
  if (threadIdx.x == 0) leaves[blockIdx.x] = sum;
}

// Of a tree: to[i] = from[2 i] + from[2 i + 1], or from[2 i] where it is the last.
__global__ void __launch_bounds__(kThreads)
    AddPairsKernel(const double* from, double* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (2 * i < count) to[i] = 2 * i + 1 < count ? from[2 * i] + from[2 * i + 1] : from[2 * i];
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const SquaredNormLeaves& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, {.grid = Blocks(CeilDiv(op.n, kNormLeaf))}, NormLeavesKernel, op.x.As<float>(),
           op.leaves.As<double>(), op.n);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const AddLeaves& op) {
  return Kernel{
      .launch =
          [op](Stream& stream) {
            // Levels take turns in the two halves of the scratch.
            auto* const scratch = static_cast<double*>(stream.scratch);
            const double* from = op.leaves.As<double>();
            int64_t left = op.count;
            for (bool odd = false; left > 1; odd = !odd, left = CeilDiv(left, 2)) {
              double* const to = left == 2 ? op.sum.As<double>() : scratch + (odd ? op.count : 0);
              Launch(stream, ThreadForEach(CeilDiv(left, 2)), AddPairsKernel, from, to, left);
              from = to;
            }
            if (op.count > 1) return;
            Launch(stream, {.grid = Blocks(1)}, AddPairsKernel, from, op.sum.As<double>(),
                   op.count);
          },
      .scratch_bytes = static_cast<size_t>(2 * op.count) * sizeof(double)};
}

}  // namespace trainyard::kernels::cuda
