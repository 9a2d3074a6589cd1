#include "kernels/ops/swiglu.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const SwiGluForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).swiglu, threads = threads_, op](Stream&) {
      ParallelFor(threads, op.rows, GrainOf(op.cols), [&](int64_t r) {
        const T* gate = op.x.As<T>() + 2 * r * op.cols;
        run(gate, gate + op.cols, op.y.As<T>() + r * op.cols, op.cols);
      });
    }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const SwiGluBackward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).swiglu_backward, threads = threads_, op](Stream&) {
      ParallelFor(threads, op.rows, GrainOf(op.cols), [&](int64_t r) {
        const T* gate = op.x.As<T>() + 2 * r * op.cols;
        T* dgate = op.dx.As<T>() + 2 * r * op.cols;
        run(gate, gate + op.cols, op.dy.As<T>() + r * op.cols, dgate, dgate + op.cols, op.cols);
      });
    }};
  });
}

}  // namespace trainyard::kernels
