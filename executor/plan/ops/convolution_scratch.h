#pragma once

// Scratch of convolutions: what is ours by kernels/scratch/, what libraries take by bounds that
// were read off their primitives (product_scratch.h says of which).

#include "executor/plan/ops/rules.h"

namespace trainyard::plan {

int64_t CpuConvolutionScratch(const ConvolutionForward& o, const Tensors& tensors);
int64_t CpuConvolutionScratch(const ConvolutionBackwardData& o, const Tensors& tensors);
int64_t CpuConvolutionScratch(const ConvolutionBackwardWeights& o, const Tensors& tensors);

// `bias`: its gradient is summed beside.
int64_t GpuConvolutionScratch(const ConvolutionShape& s, bool bias = false);

}  // namespace trainyard::plan
