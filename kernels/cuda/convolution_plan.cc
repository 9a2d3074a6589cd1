#include "kernels/cuda/convolution_plan.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kMostPlans = 8;

// NCHW dimensions, with the strides of NHWC.
GraphTensor ChannelsLast(int64_t id, int64_t n, int64_t c, int64_t h, int64_t w, DType type,
                         int64_t alignment) {
  return {.id = id,
          .dims = {n, c, h, w},
          .strides = {h * w * c, 1, w * c, c},
          .type = CudnnTypeOf(type),
          .alignment = alignment};
}

OperationGraph GraphOf(const ConvolutionAsked& asked) {
  const ConvolutionShape& s = asked.shape;
  OperationGraph graph;
  const auto x = graph.Bound(
      ChannelsLast(kConvolutionX, s.batch, s.in, s.height, s.width, asked.type, asked.x_alignment));
  const auto w = graph.Bound(ChannelsLast(kConvolutionW, s.out, s.in / s.groups, s.kernel_height,
                                          s.kernel_width, asked.type, asked.w_alignment));
  const auto y = graph.Bound(ChannelsLast(kConvolutionY, s.batch, s.out, s.out_height(),
                                          s.out_width(), asked.type, asked.y_alignment));
  graph.Convolve(asked.direction, {.stride = s.stride, .pad = s.pad}, x, w, y);
  return graph;
}

// Notes of engines that are passed over. fp32 stays fp32: engines on tensor cores would use TF32.
// Products of 16-bit elements are exact, and their sums are fp32. Winograd's larger tiles lose
// digits.
std::vector<cudnnBackendNumericalNote_t> Without(DType type) {
  std::vector<cudnnBackendNumericalNote_t> notes = {
      CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
      CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13};
  if (type == DType::kF32) notes.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  return notes;
}

}  // namespace

std::string NameOf(const ConvolutionAsked& asked) {
  const ConvolutionShape& s = asked.shape;
  const char* const direction = asked.direction == ConvolutionDirection::kForward ? "forward"
                                : asked.direction == ConvolutionDirection::kDataGradient
                                    ? "data"
                                    : "weights";
  return absl::StrCat("convolution-", direction, "-", CudnnTypeOf(asked.type), "-", s.batch, "x",
                      s.height, "x", s.width, "x", s.in, "-", s.out, "x", s.kernel_height, "x",
                      s.kernel_width, "-s", s.stride, "p", s.pad, "g", s.groups, "-",
                      asked.x_alignment, ".", asked.w_alignment, ".", asked.y_alignment);
}

absl::StatusOr<std::vector<std::unique_ptr<Plan>>> PlansOf(const PlanTarget& target,
                                                           const ConvolutionAsked& asked) {
  const auto graph = std::make_shared<OperationGraph>(GraphOf(asked));
  const absl::Status finished = graph->Finish(target);
  if (!finished.ok()) return finished;
  absl::StatusOr<std::vector<std::unique_ptr<Plan>>> plans =
      PlansOf(target, graph,
              {.most_workspace_bytes = kMostConvolutionWorkspace,
               .most_plans = kMostPlans,
               .without = Without(asked.type)});
  if (plans.ok()) return plans;
  const ConvolutionShape& s = asked.shape;
  return absl::Status(
      plans.status().code(),
      absl::StrCat("cuda convolution: cuDNN offers no deterministic plan for batch ", s.batch, ", ",
                   s.height, "x", s.width, "x", s.in, " to ", s.out, " channels, kernel ",
                   s.kernel_height, "x", s.kernel_width, ", stride ", s.stride, ", pad ", s.pad,
                   ", groups ", s.groups, ": ", plans.status().message()));
}

}  // namespace trainyard::kernels::cuda
