#pragma once

// How cuDNN is asked for a convolution of NHWC activations with [out, height, width, in] weights,
// and which of its plans are taken.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/ops/convolution.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::kernels::cuda {

using ConvolutionDirection = OperationGraph::Convolution;

// The ids of tensors that Plan::Run binds; the direction says which of them is the result.
inline constexpr int64_t kConvolutionX = 1, kConvolutionW = 2, kConvolutionY = 3;

struct ConvolutionAsked {
  ConvolutionDirection direction = ConvolutionDirection::kForward;
  ConvolutionShape shape;
  DType type = DType::kF32;  // of all three
  int64_t x_alignment = kMostAlignment, w_alignment = kMostAlignment, y_alignment = kMostAlignment;
};

// A name, without spaces, of everything that the choice of plans depends on.
std::string NameOf(const ConvolutionAsked& asked);

// Plans that add in a fixed order and keep fp32 fp32 (no TF32), the library's first choice first;
// at least one, at most eight. kUnimplemented: there is none.
absl::StatusOr<std::vector<std::unique_ptr<Plan>>> PlansOf(const PlanTarget& target,
                                                           const ConvolutionAsked& asked);

}  // namespace trainyard::kernels::cuda
