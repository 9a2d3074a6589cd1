#include "kernels/ops/convolution.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/add_bias.h"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/transpose.h"
#include "kernels/cuda/trial.h"
#include "kernels/cuda/trial_data.h"

namespace trainyard::kernels::cuda {
namespace {

// The most workspace of plans that are only candidates: scratch for measuring them stays allocated
// for as long as the job runs.
constexpr size_t kMeasuredWorkspace = size_t{32} << 20;

// What the three directions share. cuDNN takes NHWC activations with [out, height, width, in]
// weights; ours are [out, in, height, width], so weights pass through scratch: per filter a
// transposition of [in, taps] to [taps, in], where taps = kernel_height * kernel_width.
struct Problem {
  ConvolutionDirection direction;
  ConvolutionShape shape;
  DType type = DType::kF32;  // of x, y and the weights; cuDNN's gradient by weights has it, too
  // The buffers of the op itself; the weights that cuDNN sees, or their gradient, may lie in
  // scratch.
  Buffer x = {}, w = {}, y = {};
  Cudnn* dnn = nullptr;
  std::shared_ptr<PlanSet> set = {};

  ConvolutionAsked asked() const {
    return {.direction = direction,
            .shape = shape,
            .type = type,
            .x_alignment = AlignmentOf(x.data),
            .w_alignment = weights_in_place() ? AlignmentOf(w.data) : kMostAlignment,
            .y_alignment = AlignmentOf(y.data)};
  }
  int64_t taps() const { return shape.kernel_height * shape.kernel_width; }
  int64_t in_rows() const { return shape.batch * shape.height * shape.width; }
  int64_t out_rows() const { return shape.batch * shape.out_height() * shape.out_width(); }
  // Whether cuDNN reads the weights in place, since both orders are the same bytes. The gradient by
  // weights, whose problem has no `w`, goes through scratch in any case.
  bool weights_in_place() const { return w.data != nullptr && (taps() == 1 || group_in() == 1); }
  int64_t group_in() const { return shape.in / shape.groups; }
  size_t weight_bytes() const {
    const size_t bytes = static_cast<size_t>(shape.out * group_in() * taps()) * SizeOf(type);
    return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
  }
  // The scratch holds the weights in cuDNN's order, then its workspace, which has room for the
  // digests of trials, too, then `more` bytes.
  size_t scratch_bytes(size_t more = 0) const {
    return kWorkspaceAlign + weight_bytes() + RoundedWorkspace() + more;
  }
  size_t RoundedWorkspace() const {
    const size_t bytes = std::max(set->workspace_bytes, kMostDigestParts * sizeof(uint64_t));
    return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
  }
};

// Where the parts of the scratch lie.
struct Scratch {
  Scratch(const Problem& problem, Stream& stream)
      : weights{AlignWorkspace(stream.scratch), problem.type},
        workspace(static_cast<char*>(weights.data) + problem.weight_bytes()),
        more(static_cast<char*>(workspace) + problem.RoundedWorkspace()) {}

  Buffer weights;
  void* workspace;
  void* more;
};

absl::Status CheckLimits(const ConvolutionShape& s) {
  const int64_t largest = std::max(s.batch * s.height * s.width * s.in,
                                   s.batch * s.out_height() * s.out_width() * s.out);
  if (largest > INT_MAX || s.out * s.in * s.kernel_height * s.kernel_width > INT_MAX) {
    return absl::UnimplementedError("cuda convolution: a tensor of 2^31 elements or more");
  }
  return absl::OkStatus();
}

// The plans that the library proposes, without those that would need much memory just to be
// measured.
absl::StatusOr<std::vector<std::unique_ptr<Plan>>> Candidates(const PlanTarget& target,
                                                              const ConvolutionAsked& asked) {
  absl::StatusOr<std::vector<std::unique_ptr<Plan>>> plans = PlansOf(target, asked);
  if (!plans.ok()) return plans;
  const size_t most = std::max(kMeasuredWorkspace, plans->front()->workspace_bytes());
  plans->erase(std::remove_if(plans->begin(), plans->end(),
                              [most](const auto& plan) { return plan->workspace_bytes() > most; }),
               plans->end());
  return plans;
}

cudnnStatus_t RunPlan(Stream& stream, Problem& p, size_t which, const Scratch& scratch) {
  const cudnnStatus_t error = p.dnn->Use(CudaStream::From(stream).handle());
  if (error != CUDNN_STATUS_SUCCESS) return error;
  return p.set->plans[which]->Run(
      p.dnn->handle(),
      {{kConvolutionX, p.x.data},
       {kConvolutionW, p.weights_in_place() ? p.w.data : scratch.weights.data},
       {kConvolutionY, p.y.data}},
      scratch.workspace);
}

// Fills the operands of a trial. The terms of a sum are channels, or pixels for the gradient by
// weights.
void FillOperands(Stream& stream, const Problem& p, const Scratch& scratch, bool cancel) {
  const ConvolutionShape& s = p.shape;
  const Buffer w = p.weights_in_place() ? Buffer{p.w.data, p.type} : scratch.weights;
  const auto rows_of = [](const Buffer& of, int64_t rows, int64_t cols, bool terms_in_rows) {
    return TrialOperand{
        .x = of, .rows = rows, .cols = cols, .step = cols, .terms_in_rows = terms_in_rows};
  };
  const float scale = cancel ? 64.0f : 1.0f;
  switch (p.direction) {
    case ConvolutionDirection::kForward:
      return LaunchTrialOperands(stream, rows_of(p.x, p.in_rows() * s.groups, p.group_in(), false),
                                 rows_of(w, s.out * p.taps(), p.group_in(), false), scale, cancel);
    case ConvolutionDirection::kDataGradient:
      return LaunchTrialOperands(stream,
                                 rows_of(p.y, p.out_rows() * s.groups, s.out / s.groups, false),
                                 rows_of(w, s.out, p.taps() * p.group_in(), true), scale, cancel);
    case ConvolutionDirection::kWeightGradient:
      return LaunchTrialOperands(stream, rows_of(p.x, p.in_rows(), s.in, true),
                                 rows_of(p.y, p.out_rows(), s.out, true), scale, cancel);
  }
}

// Puts the fastest plan first.
void Measure(Stream& stream, Problem& p) {
  std::vector<std::unique_ptr<Plan>>& plans = p.set->plans;
  if (p.set->settled || plans.size() < 2) return;
  const Scratch scratch(p, stream);
  const Buffer w = p.weights_in_place() ? Buffer{p.w.data, p.type} : scratch.weights;
  const bool forward = p.direction == ConvolutionDirection::kForward;
  const bool by_data = p.direction == ConvolutionDirection::kDataGradient;
  const int64_t weight_cols = p.taps() * p.group_in();
  const Trial trial = {.candidates = static_cast<int>(plans.size()),
                       .fill = [&](bool cancel) { FillOperands(stream, p, scratch, cancel); },
                       .run =
                           [&](int candidate) {
                             return RunPlan(stream, p, candidate, scratch) == CUDNN_STATUS_SUCCESS;
                           },
                       .result = forward   ? p.y
                                 : by_data ? p.x
                                           : w,
                       .rows = forward   ? p.out_rows()
                               : by_data ? p.in_rows()
                                         : p.shape.out,
                       .cols = forward   ? p.shape.out
                               : by_data ? p.shape.in
                                         : weight_cols,
                       .step = forward   ? p.shape.out
                               : by_data ? p.shape.in
                                         : weight_cols};
  const Choice choice =
      FastestOfSameBits(stream, trial, static_cast<uint64_t*>(scratch.workspace), p.dnn->time());
  std::swap(plans[0], plans[choice.candidate]);
  if (choice.complete) p.dnn->Settle(NameOf(p.asked()), *p.set);
}

// Writes the weights in cuDNN's order to `to`, unless cuDNN reads them in place.
void ReorderWeights(Stream& stream, const Problem& p, const Buffer& to) {
  if (!p.weights_in_place())
    LaunchTranspose(stream, p.w, to, p.shape.out, p.group_in(), p.taps(), false);
}

void RunPlan(Stream& stream, Problem& p, const Scratch& scratch) {
  const cudnnStatus_t error = RunPlan(stream, p, 0, scratch);
  if (error != CUDNN_STATUS_SUCCESS) {
    CudaStream::From(stream).fault().Note(ToStatus(error, "convolution"));
  }
}

// Common to the three directions: finds the plans, then makes a kernel that calls `run`. The
// problem is shared because a std::function must be copyable.
absl::StatusOr<Kernel> Prepared(absl::StatusOr<Cudnn*> dnn, Problem made, size_t more,
                                std::function<void(Stream&, Problem&)> run) {
  if (!dnn.ok()) return dnn.status();
  const auto problem = std::make_shared<Problem>(std::move(made));
  problem->dnn = *dnn;
  const ConvolutionAsked asked = problem->asked();
  absl::StatusOr<std::shared_ptr<PlanSet>> set = problem->dnn->Plans(
      NameOf(asked), [&](const PlanTarget& target) { return Candidates(target, asked); });
  if (!set.ok()) return set.status();
  problem->set = *std::move(set);
  Kernel kernel = {
      .launch = [problem, run = std::move(run)](Stream& stream) { run(stream, *problem); },
      .scratch_bytes = problem->scratch_bytes(more)};
  if (problem->set->plans.size() > 1) {
    kernel.tune = [problem](Stream& stream) { Measure(stream, *problem); };
  }
  return kernel;
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const ConvolutionForward& op) {
  if (absl::Status ok = CheckLimits(op.shape); !ok.ok()) return ok;
  return Prepared(OpenCudnn(),
                  {.direction = ConvolutionDirection::kForward,
                   .shape = op.shape,
                   .type = op.x.dtype,
                   .x = op.x,
                   .w = op.w,
                   .y = op.y},
                  0, [op](Stream& stream, Problem& p) {
                    const Scratch scratch(p, stream);
                    ReorderWeights(stream, p, scratch.weights);
                    RunPlan(stream, p, scratch);
                    if (op.bias) {
                      LaunchAddBias(stream, op.y, op.bias.As<float>(), op.y, p.out_rows(),
                                    p.shape.out);
                    }
                  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const ConvolutionBackwardData& op) {
  if (absl::Status ok = CheckLimits(op.shape); !ok.ok()) return ok;
  return Prepared(OpenCudnn(),
                  {.direction = ConvolutionDirection::kDataGradient,
                   .shape = op.shape,
                   .type = op.dy.dtype,
                   .x = op.dx,
                   .w = op.w,
                   .y = op.dy},
                  0, [](Stream& stream, Problem& p) {
                    const Scratch scratch(p, stream);
                    ReorderWeights(stream, p, scratch.weights);
                    RunPlan(stream, p, scratch);
                  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const ConvolutionBackwardWeights& op) {
  if (absl::Status ok = CheckLimits(op.shape); !ok.ok()) return ok;
  const int64_t out_rows = op.shape.batch * op.shape.out_height() * op.shape.out_width();
  const size_t more = op.dbias ? RowSumBytes(out_rows, op.shape.out) : 0;
  // The gradient goes through scratch in any case: cuDNN writes it in the activations' type, and it
  // may have to be added.
  return Prepared(OpenCudnn(),
                  {.direction = ConvolutionDirection::kWeightGradient,
                   .shape = op.shape,
                   .type = op.x.dtype,
                   .x = op.x,
                   .y = op.dy},
                  more, [op](Stream& stream, Problem& p) {
                    const Scratch scratch(p, stream);
                    RunPlan(stream, p, scratch);
                    LaunchTranspose(stream, scratch.weights, op.dw, p.shape.out, p.taps(),
                                    p.group_in(), op.accumulate);
                    if (op.dbias) {
                      LaunchColumnSum(stream, op.dy, op.dbias.As<float>(), p.out_rows(),
                                      p.shape.out, op.accumulate, scratch.more);
                    }
                  });
}

}  // namespace trainyard::kernels::cuda
