#pragma once

#include "kernels/ops/convolution.h"
#include "kernels/ops/pool.h"
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

struct MaxPoolResult {
  Vec y;
  std::vector<uint8_t> index;
};
MaxPoolResult MaxPool(const Vec& x, const kernels::PoolShape& s);
Vec MaxPoolBackward(const Vec& dy, const std::vector<uint8_t>& index, const kernels::PoolShape& s);

// x: bytes [pixels, channels]; one mean and one std per channel.
Vec NormalizeImages(const Vec& x, const Vec& mean, const Vec& std);
// The crops that kernels::NormalizeImages makes: x, y [images, height, width, channels]; places
// [images, 3].
Vec CropImages(const Vec& x, const std::vector<int32_t>& places, int64_t height, int64_t width,
               int64_t channels);

Vec MeanPool(const Vec& x, int64_t batch, int64_t pixels, int64_t channels);
Vec MeanPoolBackward(const Vec& dy, int64_t batch, int64_t pixels, int64_t channels);

}  // namespace trainyard::reference
