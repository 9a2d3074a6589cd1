#include "kernels/ops/mean_pool.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

template <typename Op>
int64_t GrainOf(const Op& op) {
  return std::max<int64_t>(1, kSerialElements / (op.pixels * op.channels));
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const MeanPoolForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).mean_pool, threads = threads_, op](Stream&) {
      ParallelRuns(threads, op.batch, GrainOf(op), [&](int64_t begin, int64_t end) {
        for (int64_t image = begin; image < end; ++image) {
          run(op.x.As<T>() + image * op.pixels * op.channels, op.pixels, op.channels,
              op.y.As<T>() + image * op.channels);
        }
      });
    }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const MeanPoolBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).mean_pool_backward, threads = threads_, op](Stream&) {
      ParallelRuns(threads, op.batch, GrainOf(op), [&](int64_t begin, int64_t end) {
        for (int64_t image = begin; image < end; ++image) {
          run(op.dy.As<T>() + image * op.channels, op.pixels, op.channels,
              op.dx.As<T>() + image * op.pixels * op.channels);
        }
      });
    }};
  });
}

}  // namespace trainyard::kernels
