#include "kernels/ops/soft_cap.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const SoftCapForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).soft_cap, threads = threads_, op](Stream&) {
      ParallelRuns(threads, op.n, kSerialElements, [&](int64_t begin, int64_t end) {
        run(op.x.As<T>() + begin, op.cap, op.y.As<T>() + begin, end - begin);
      });
    }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const SoftCapBackward& op) {
  return ForElement(op.y.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).soft_cap_backward, threads = threads_, op](Stream&) {
      ParallelRuns(threads, op.n, kSerialElements, [&](int64_t begin, int64_t end) {
        run(op.y.As<T>() + begin, op.dy.As<T>() + begin, op.cap, op.dx.As<T>() + begin,
            end - begin);
      });
    }};
  });
}

}  // namespace trainyard::kernels
