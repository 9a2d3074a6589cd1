#pragma once

#include "absl/status/statusor.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"
#include "kernels/ops/convolution.h"
#include "kernels/scratch/winograd.h"

namespace trainyard::kernels {

// The three ops of a convolution that it suits (kernels/scratch/winograd.h) and whose operands were
// checked. Operands are of any element type; sums are fp32 and the same whatever the number of
// threads.
absl::StatusOr<Kernel> WinogradForward(const VectorTable& vectors, int threads,
                                       const ConvolutionForward& op);
absl::StatusOr<Kernel> WinogradBackwardData(const VectorTable& vectors, int threads,
                                            const ConvolutionBackwardData& op);
// Does not compute dbias.
absl::StatusOr<Kernel> WinogradBackwardWeights(const VectorTable& vectors, int threads,
                                               const ConvolutionBackwardWeights& op);

}  // namespace trainyard::kernels
