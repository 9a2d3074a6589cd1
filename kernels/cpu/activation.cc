#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Prepare(const ActivationForward& op) {
  absl::Status ok = CheckOperands("activation", {{"x", op.x}, {"y", op.y}});
  if (!ok.ok()) return ok;
  auto* const run = op.kind == ActivationKind::kRelu   ? vectors_.f32.relu
                    : op.kind == ActivationKind::kGelu ? vectors_.f32.gelu
                                                       : vectors_.f32.gelu_tanh;
  return Kernel{
      [=, threads = threads_, x = op.x.As<float>(), y = op.y.As<float>(), n = op.n](Stream&) {
        ParallelRuns(threads, n, kSerialElements,
                     [&](int64_t begin, int64_t end) { run(x + begin, y + begin, end - begin); });
      }};
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const ActivationBackward& op) {
  absl::Status ok =
      CheckOperands("activation backward", {{"x", op.x}, {"dy", op.dy}, {"dx", op.dx}});
  if (!ok.ok()) return ok;
  auto* const run = op.kind == ActivationKind::kRelu   ? vectors_.f32.relu_backward
                    : op.kind == ActivationKind::kGelu ? vectors_.f32.gelu_backward
                                                       : vectors_.f32.gelu_tanh_backward;
  return Kernel{[=, threads = threads_, x = op.x.As<float>(), dy = op.dy.As<float>(),
                 dx = op.dx.As<float>(), n = op.n](Stream&) {
    ParallelRuns(threads, n, kSerialElements, [&](int64_t begin, int64_t end) {
      run(x + begin, dy + begin, dx + begin, end - begin);
    });
  }};
}

}  // namespace trainyard::kernels
