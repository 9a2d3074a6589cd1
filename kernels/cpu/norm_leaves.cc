#include "kernels/ops/norm_leaves.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"
#include "kernels/scratch/sums.h"

namespace trainyard::kernels {

// SquaredNorm has the same leaves.
static_assert(kNormLeaf == scratch::kReductionRun);

absl::StatusOr<Kernel> CpuDevice::Bind(const SquaredNormLeaves& op) {
  return Kernel{[square = vectors_.f32.squared_norm, threads = threads_, x = op.x.As<float>(),
                 leaves = op.leaves.As<double>(), n = op.n](Stream&) {
    ParallelFor(threads, scratch::Ceil(n, kNormLeaf), 4, [&](int64_t i) {
      leaves[i] = square(x + i * kNormLeaf, std::min(kNormLeaf, n - i * kNormLeaf));
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const AddLeaves& op) {
  Kernel kernel;
  kernel.scratch_bytes = scratch::kDouble * op.count;
  kernel.launch = [leaves = op.leaves.As<double>(), sum = op.sum.As<double>(),
                   count = op.count](Stream& stream) {
    double* const left = static_cast<double*>(stream.scratch);
    std::copy(leaves, leaves + count, left);
    *sum = SumPairwise(left, count);
  };
  return kernel;
}

}  // namespace trainyard::kernels
