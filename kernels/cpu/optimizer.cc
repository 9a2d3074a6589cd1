#include <algorithm>
#include <cmath>

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/step_taken.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {
namespace {

// Calls step(begin, end, gradient from `begin` on) over [0, n), with the gradient in fp32, and
// rounds the new w of each run to `copy` while it is in the cache.
template <typename F>
void UpdateRuns(const VectorTable& vectors, int threads, const float* w, const Buffer& grad,
                const Buffer& copy, int64_t n, const F& step) {
  ParallelRuns(threads, n, kSerialElements, [&](int64_t begin, int64_t end) {
    const bool wide = grad.dtype == DType::kF32;
    if (wide && !copy) return step(begin, end, grad.As<float>() + begin);
    constexpr int64_t kBlock = 2048;
    float widened[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t size = std::min(kBlock, end - i);
      if (!wide) {
        ForElement(grad.dtype, [&]<typename T>() {
          LoopsOf<T>(vectors).to_f32(grad.As<T>() + i, widened, size);
        });
      }
      step(i, i + size, wide ? grad.As<float>() + i : widened);
      if (!copy) continue;
      ForElement(copy.dtype, [&]<typename T>() {
        LoopsOf<T>(vectors).from_f32(w + i, copy.As<T>() + i, size);
      });
    }
  });
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const SquaredNorm& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return ReduceToDouble<T>(threads_, LoopsOf<T>(vectors_).squared_norm, op.x.As<T>(), op.n,
                             op.sum.As<double>(), op.accumulate);
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const ClipScale& op) {
  return Kernel{[sum = op.sum.As<double>(), count = OptionalAs<double>(op.count),
                 loss = OptionalAs<double>(op.loss), norm = op.norm.As<float>(),
                 scale = op.scale.As<float>(), state = StepStateOf(op.state),
                 rows = static_cast<double>(op.rows), max_norm = op.max_norm](Stream&) {
    const double factor = (count != nullptr && *count > 0 ? rows / *count : 1.0) /
                          (state == nullptr ? 1.0f : state->loss_scale);
    *norm = static_cast<float>(std::sqrt(*sum) * factor);
    const bool finite = std::isfinite(*norm) && (loss == nullptr || std::isfinite(*loss));
    const float clip = max_norm / (*norm + 1e-6f);
    *scale = finite && !std::isnan(*scale)
                 ? static_cast<float>(factor) * (std::isinf(max_norm) || clip > 1 ? 1 : clip)
                 : NAN;
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const AdamWStep& op) {
  return Kernel{[run = vectors_.adamw, &vectors = vectors_, threads = threads_, op](Stream&) {
    if (!IsTaken(op.grad_scale)) return;
    const AdamWRange all = AdamWRangeOf(op, op.n);
    float *const w = op.w.As<float>(), *const m = op.m.As<float>(), *const v = op.v.As<float>();
    const auto step = [&](int64_t begin, int64_t end, const float* grad) {
      AdamWRange range = all;
      range.w = w + begin;
      range.m = m + begin;
      range.v = v + begin;
      range.grad = grad;
      range.n = end - begin;
      run(range);
    };
    UpdateRuns(vectors, threads, w, op.grad, op.copy, op.n, step);
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const SgdStep& op) {
  return Kernel{[run = vectors_.sgd, &vectors = vectors_, threads = threads_, op](Stream&) {
    if (!IsTaken(op.grad_scale)) return;
    const StepState& state = *StepStateOf(op.state);
    const SgdRange all{.w = op.w.As<float>(),
                       .velocity = OptionalAs<float>(op.velocity),
                       .grad = nullptr,
                       .n = op.n,
                       .grad_scale = op.grad_scale ? *op.grad_scale.As<float>() : 1.0f,
                       .lr = state.learning_rate * op.learning_rate_scale,
                       .momentum = op.momentum,
                       .weight_decay = op.weight_decay,
                       .first = state.updates == 0,
                       .nesterov = op.nesterov};
    const auto step = [&](int64_t begin, int64_t end, const float* grad) {
      SgdRange range = all;
      range.w += begin;
      if (range.velocity != nullptr) range.velocity += begin;
      range.grad = grad;
      range.n = end - begin;
      run(range);
    };
    UpdateRuns(vectors, threads, all.w, op.grad, op.copy, all.n, step);
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const EmaStep& op) {
  return Kernel{[run = vectors_.ema, threads = threads_, op](Stream&) {
    if (!IsTaken(op.grad_scale)) return;
    const auto step = static_cast<double>(StepStateOf(op.state)->step);
    const double decay = op.warmup ? std::min(op.decay, (1 + step) / (10 + step)) : op.decay;
    const auto rest = static_cast<float>(1 - decay);
    ParallelRuns(threads, op.n, kSerialElements, [&](int64_t begin, int64_t end) {
      run(op.w.As<float>() + begin, rest, op.average.As<float>() + begin, end - begin);
    });
  }};
}

}  // namespace trainyard::kernels
