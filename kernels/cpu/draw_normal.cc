#include "kernels/ops/draw_normal.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const DrawNormal& op) {
  constexpr int64_t kEach = 4096;  // elements, some 10 us
  return Kernel{[draw = vectors_.draw_normals, op, threads = threads_](Stream&) {
    ParallelRuns(threads, op.n, kEach, [&](int64_t begin, int64_t end) {
      draw({.x = op.x.As<float>() + begin,
            .seed = op.seed,
            .stream = op.stream,
            .first = op.first + begin,
            .n = end - begin,
            .std = op.std});
    });
  }};
}

}  // namespace trainyard::kernels
