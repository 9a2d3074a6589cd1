#pragma once

// What convolutions cost, by their shape: floating-point operations, and bytes of scratch for the
// way that the CPU back end takes them (kernels/cpu/convolution.cc picks it by the same
// conditions).

#include <cstdint>

#include "executor/plan/ops.h"

namespace trainyard::plan {

double ConvolutionFlops(const ConvolutionShape& s);

// x in fp32.
int64_t InputBytes(const ConvolutionShape& s);

// oneDNN's: forward (`pictures`: with kernels of their own for images of few channels) and by data,
// and the gradient by weights.
int64_t DirectBytes(const ConvolutionShape& s, bool pictures);
int64_t DirectSumBytes(const ConvolutionShape& s);

// By data, where the CPU has instructions for bf16, but no tiles.
int64_t NarrowDataBytes(const ConvolutionShape& s);

// Each of the three where the CPU has tiles for bf16 (AMX).
int64_t TileForwardBytes(const ConvolutionShape& s);
int64_t TileDataBytes(const ConvolutionShape& s);
int64_t TileSumBytes(const ConvolutionShape& s);

// Our own, by Winograd's algorithm: forward and by data, and the gradient by weights.
bool SuitsWinograd(const ConvolutionShape& s);
int64_t WinogradBytes(const ConvolutionShape& s);
int64_t WinogradGradientBytes(const ConvolutionShape& s);

// Our own gradient by weights of other convolutions.
bool SuitsWeightGradient(const ConvolutionShape& s);
int64_t WeightGradientBytes(const ConvolutionShape& s);

}  // namespace trainyard::plan
