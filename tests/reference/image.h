#pragma once

#include "kernels/ops/convolution.h"
#include "tests/reference/vec.h"

namespace trainyard::reference {

// bias may be empty.
Vec Convolution(const Vec& x, const Vec& w, const Vec& bias, const kernels::ConvolutionShape& s);
Vec ConvolutionBackwardData(const Vec& dy, const Vec& w, const kernels::ConvolutionShape& s);

struct ConvolutionWeightGradient {
  Vec dw, dbias;
};
ConvolutionWeightGradient ConvolutionBackwardWeights(const Vec& x, const Vec& dy,
                                                     const kernels::ConvolutionShape& s);

struct PoolShape {
  int64_t batch = 1, height = 1, width = 1, channels = 1, window = 2;
};
struct MaxPoolResult {
  Vec y;
  std::vector<uint8_t> index;
};
MaxPoolResult MaxPool(const Vec& x, const PoolShape& s);
Vec MaxPoolBackward(const Vec& dy, const std::vector<uint8_t>& index, const PoolShape& s);

}  // namespace trainyard::reference
