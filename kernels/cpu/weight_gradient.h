#pragma once

#include "absl/status/statusor.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"
#include "kernels/ops/convolution.h"
#include "kernels/scratch/weight_gradient.h"

namespace trainyard::kernels {

// dw of a convolution that it suits (kernels/scratch/weight_gradient.h) and whose operands were
// checked; x and dy are of any element type, sums are in fp32. The order of the sums depends on the
// shape alone, never on the threads.
absl::StatusOr<Kernel> WeightGradient(const VectorTable& vectors, int threads,
                                      const ConvolutionBackwardWeights& op);

}  // namespace trainyard::kernels
