#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {
namespace {

absl::Status CheckState(const char* op, const void* state) {
  if (state != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": operand state is missing"));
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const SquaredNorm& op) {
  absl::Status ok = CheckOperands("squared_norm", {{"x", op.x}, {"sum", op.sum, DType::kF64}});
  if (!ok.ok()) return ok;
  return ReduceToDouble(threads_, vectors_.squared_norm, op.x.As<float>(), op.n,
                        op.sum.As<double>(), op.accumulate);
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const ClipScale& op) {
  absl::Status ok = CheckOperands(
      "clip_scale", {{"sum", op.sum, DType::kF64}, {"norm", op.norm}, {"scale", op.scale}});
  if (!ok.ok()) return ok;
  return Kernel{[sum = op.sum.As<double>(), norm = op.norm.As<float>(),
                 scale = op.scale.As<float>(), max_norm = op.max_norm](Stream&) {
    const float root = static_cast<float>(std::sqrt(*sum));
    *norm = root;
    const float factor = max_norm / (root + 1e-6f);
    // Not min(): a norm that is not a number must show in the weights, not vanish.
    *scale = std::isinf(max_norm) || factor > 1.0f ? 1.0f : factor;
  }};
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const AdamWStep& op) {
  absl::Status ok = CheckOperands("adamw", {{"w", op.w},
                                            {"grad", op.grad},
                                            {"m", op.m},
                                            {"v", op.v},
                                            {"grad_scale", op.grad_scale, DType::kF32, true}});
  if (ok.ok()) ok = CheckState("adamw", op.state);
  if (!ok.ok()) return ok;
  return Kernel{[run = vectors_.adamw, threads = threads_, op](Stream&) {
    const StepState& state = *static_cast<const StepState*>(op.state);
    const double t = static_cast<double>(state.step + 1);
    const float lr = state.learning_rate * op.learning_rate_scale;
    AdamWRange all{.w = op.w.As<float>(),
                   .m = op.m.As<float>(),
                   .v = op.v.As<float>(),
                   .grad = op.grad.As<float>(),
                   .n = op.n,
                   .grad_scale = op.grad_scale ? *op.grad_scale.As<float>() : 1.0f,
                   .beta1 = op.beta1,
                   .beta2 = op.beta2,
                   .epsilon = op.epsilon,
                   .decay = lr * op.weight_decay};
    all.step_size = static_cast<float>(lr / (1.0 - std::pow(static_cast<double>(op.beta1), t)));
    all.inverse_sqrt_c2 =
        static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(op.beta2), t)));
    ParallelRuns(threads, all.n, kSerialElements, [&](int64_t begin, int64_t end) {
      AdamWRange range = all;
      range.w += begin;
      range.m += begin;
      range.v += begin;
      range.grad += begin;
      range.n = end - begin;
      run(range);
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const SgdStep& op) {
  absl::Status ok = CheckOperands("sgd", {{"w", op.w},
                                          {"grad", op.grad},
                                          {"velocity", op.velocity, DType::kF32, op.momentum == 0},
                                          {"grad_scale", op.grad_scale, DType::kF32, true}});
  if (ok.ok()) ok = CheckState("sgd", op.state);
  if (!ok.ok()) return ok;
  return Kernel{[run = vectors_.sgd, threads = threads_, op](Stream&) {
    const StepState& state = *static_cast<const StepState*>(op.state);
    const SgdRange all{.w = op.w.As<float>(),
                       .velocity = op.velocity.As<float>(),
                       .grad = op.grad.As<float>(),
                       .n = op.n,
                       .grad_scale = op.grad_scale ? *op.grad_scale.As<float>() : 1.0f,
                       .lr = state.learning_rate * op.learning_rate_scale,
                       .momentum = op.momentum,
                       .weight_decay = op.weight_decay,
                       .first = state.step == 0,
                       .nesterov = op.nesterov};
    ParallelRuns(threads, all.n, kSerialElements, [&](int64_t begin, int64_t end) {
      SgdRange range = all;
      range.w += begin;
      if (range.velocity != nullptr) range.velocity += begin;
      range.grad += begin;
      range.n = end - begin;
      run(range);
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const EmaStep& op) {
  absl::Status ok = CheckOperands("ema", {{"average", op.average}, {"w", op.w}});
  if (ok.ok()) ok = CheckState("ema", op.state);
  if (!ok.ok()) return ok;
  return Kernel{[run = vectors_.ema, threads = threads_, op](Stream&) {
    const auto step = static_cast<double>(static_cast<const StepState*>(op.state)->step);
    const double decay = op.warmup ? std::min(op.decay, (1 + step) / (10 + step)) : op.decay;
    const auto rest = static_cast<float>(1 - decay);
    ParallelRuns(threads, op.n, kSerialElements, [&](int64_t begin, int64_t end) {
      run(op.w.As<float>() + begin, rest, op.average.As<float>() + begin, end - begin);
    });
  }};
}

}  // namespace trainyard::kernels
