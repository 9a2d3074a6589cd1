#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/step_taken.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const MuonMomentum& op) {
  return Kernel{[run = vectors_.muon_momentum, threads = threads_, op](Stream&) {
    if (!IsTaken(op.grad_scale)) return;
    const float grad_scale = op.grad_scale ? *op.grad_scale.As<float>() : 1.0f;
    ParallelRuns(threads, op.n, kSerialElements, [&](int64_t begin, int64_t end) {
      run({.velocity = op.velocity.As<float>() + op.offset + begin,
           .grad = op.grad.As<float>() + op.offset + begin,
           .y = op.y.As<float>() + begin,
           .n = end - begin,
           .grad_scale = grad_scale,
           .momentum = op.momentum,
           .nesterov = op.nesterov});
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const DivideByNorm& op) {
  return Kernel{[scale = vectors_.scale, threads = threads_, op](Stream&) {
    const auto factor = static_cast<float>(1 / (std::sqrt(*op.sum.As<double>()) + op.epsilon));
    ParallelRuns(threads, op.n, kSerialElements, [&](int64_t begin, int64_t end) {
      scale(factor, op.x.As<float>() + begin, end - begin);
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const NewtonSchulz& op) {
  const int64_t grain = GrainOf(op.n);
  return Kernel{[axpby = vectors_.axpby, threads = threads_, op, grain](Stream&) {
    ParallelRuns(threads, op.n, grain, [&](int64_t begin, int64_t end) {
      float* const y = op.y.As<float>();
      axpby(op.b, op.x.As<float>() + begin * op.n, op.c, y + begin * op.n, (end - begin) * op.n);
      for (int64_t i = begin; i < end; ++i) y[i * op.n + i] += op.a;
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const MuonStep& op) {
  return Kernel{[axpby = vectors_.axpby, threads = threads_, op](Stream&) {
    if (!IsTaken(op.grad_scale)) return;
    const float lr = StepStateOf(op.state)->learning_rate * op.learning_rate_scale;
    ParallelRuns(threads, op.n, kSerialElements, [&](int64_t begin, int64_t end) {
      axpby(-lr * op.scale, op.x.As<float>() + begin, 1.0f - lr * op.weight_decay,
            op.w.As<float>() + op.offset + begin, end - begin);
    });
  }};
}

}  // namespace trainyard::kernels
