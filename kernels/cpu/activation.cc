#include <cstdlib>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

template <typename T>
struct Loops {
  void (*forward)(const T* x, T* y, int64_t n);
  void (*backward)(const T* x, const T* dy, T* dx, int64_t n);
};

template <typename T>
Loops<T> LoopsOfKind(ActivationKind kind, const ElementLoops<T>& vectors) {
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

absl::StatusOr<Kernel> CpuDevice::Bind(const ActivationForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    auto* const run = LoopsOfKind(op.kind, LoopsOf<T>(vectors_)).forward;
    return Kernel{[=, threads = threads_, x = op.x.As<T>(), y = op.y.As<T>(), n = op.n](Stream&) {
      ParallelRuns(threads, n, kSerialElements,
                   [&](int64_t begin, int64_t end) { run(x + begin, y + begin, end - begin); });
    }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const ActivationBackward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    auto* const run = LoopsOfKind(op.kind, LoopsOf<T>(vectors_)).backward;
    return Kernel{[=, threads = threads_, x = op.x.As<T>(), dy = op.dy.As<T>(), dx = op.dx.As<T>(),
                   n = op.n](Stream&) {
      ParallelRuns(threads, n, kSerialElements, [&](int64_t begin, int64_t end) {
        run(x + begin, dy + begin, dx + begin, end - begin);
      });
    }};
  });
}

}  // namespace trainyard::kernels
