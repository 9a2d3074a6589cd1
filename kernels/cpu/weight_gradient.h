#pragma once

#include "absl/status/statusor.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"
#include "kernels/ops/convolution.h"

namespace trainyard::kernels {

// Whether WeightGradient takes a convolution: one group, enough channels to fill its tiles.
bool SuitsWeightGradient(const ConvolutionShape& s);

// dw of a convolution whose operands were checked; x and dy of any element type, sums in fp32. What
// is summed in which order depends on the shape alone, never on the threads.
// Its scratch is counted in executor/plan/convolution_cost.cc, too.
absl::StatusOr<Kernel> WeightGradient(const VectorTable& vectors, int threads,
                                      const ConvolutionBackwardWeights& op);

}  // namespace trainyard::kernels
