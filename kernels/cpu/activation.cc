#include <cstdlib>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

template <typename T>
struct Loops {
  void (*forward)(const T* x, T* y, int64_t n);
  void (*backward)(const T* x, const T* dy, T* dx, int64_t n);
};

template <typename T>
Loops<T> LoopsOf(ActivationKind kind, const ElementLoops<T>& vectors) {
  switch (kind) {
    case ActivationKind::kRelu:
      return {vectors.relu, vectors.relu_backward};
    case ActivationKind::kGelu:
      return {vectors.gelu, vectors.gelu_backward};
    case ActivationKind::kGeluTanh:
      return {vectors.gelu_tanh, vectors.gelu_tanh_backward};
    case ActivationKind::kRelu6:
      return {vectors.relu6, vectors.relu6_backward};
  }
  std::abort();
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const ActivationForward& op) {
  absl::Status ok = CheckOperands("activation", {{"x", op.x}, {"y", op.y}});
  if (!ok.ok()) return ok;
  auto* const run = LoopsOf(op.kind, vectors_.f32).forward;
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
  auto* const run = LoopsOf(op.kind, vectors_.f32).backward;
  return Kernel{[=, threads = threads_, x = op.x.As<float>(), dy = op.dy.As<float>(),
                 dx = op.dx.As<float>(), n = op.n](Stream&) {
    ParallelRuns(threads, n, kSerialElements, [&](int64_t begin, int64_t end) {
      run(x + begin, dy + begin, dx + begin, end - begin);
    });
  }};
}

}  // namespace trainyard::kernels
