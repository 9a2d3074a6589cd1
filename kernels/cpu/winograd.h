#pragma once

#include "absl/status/statusor.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"
#include "kernels/ops/convolution.h"

namespace trainyard::kernels {

// Whether Winograd's F(4x4, 3x3) takes a convolution: a fourth of the multiplications, but the
// weights are transformed first, which pays from about 64 tiles on. Its rounding error is about ten
// times that of the direct sum, still some 2e-6 of the norm. Of a tile that holds Inf or NaN all is
// NaN.
bool SuitsWinograd(const ConvolutionShape& s);

// The three ops of a convolution whose operands were checked, of any element type, sums in fp32,
// the same whatever the threads.
absl::StatusOr<Kernel> WinogradForward(const VectorTable& vectors, int threads,
                                       const ConvolutionForward& op);
absl::StatusOr<Kernel> WinogradBackwardData(const VectorTable& vectors, int threads,
                                            const ConvolutionBackwardData& op);
// Without dbias. What each asks for is counted in executor/plan/convolution_cost.cc, too.
absl::StatusOr<Kernel> WinogradBackwardWeights(const VectorTable& vectors, int threads,
                                               const ConvolutionBackwardWeights& op);

}  // namespace trainyard::kernels
