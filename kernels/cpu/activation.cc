#include <cstdlib>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"

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
    const Loops<T> loops = LoopsOfKind(op.kind, LoopsOf<T>(vectors_));
    return Elementwise(threads_, op.n, loops.forward, op.x.As<T>(), op.y.As<T>());
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const ActivationBackward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    const Loops<T> loops = LoopsOfKind(op.kind, LoopsOf<T>(vectors_));
    return Elementwise(threads_, op.n, loops.backward, op.x.As<T>(), op.dy.As<T>(), op.dx.As<T>());
  });
}

}  // namespace trainyard::kernels
