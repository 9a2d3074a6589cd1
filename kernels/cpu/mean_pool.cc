#include "kernels/ops/mean_pool.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const MeanPoolForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).mean_pool, threads = threads_, op](Stream&) {
      ParallelFor(threads, op.batch, GrainOf(op.pixels * op.channels), [&](int64_t image) {
        run(op.x.As<T>() + image * op.pixels * op.channels, op.pixels, op.channels,
            op.y.As<T>() + image * op.channels);
      });
    }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const MeanPoolBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).mean_pool_backward, threads = threads_, op](Stream&) {
      ParallelFor(threads, op.batch, GrainOf(op.pixels * op.channels), [&](int64_t image) {
        run(op.dy.As<T>() + image * op.channels, op.pixels, op.channels,
            op.dx.As<T>() + image * op.pixels * op.channels);
      });
    }};
  });
}

}  // namespace trainyard::kernels
