#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Prepare(const Add& op) {
  absl::Status ok = CheckOperands("add", {{"a", op.a}, {"b", op.b}, {"y", op.y}});
  if (!ok.ok()) return ok;
  return Kernel{[add = vectors_.f32.add, threads = threads_, a = op.a.As<float>(),
                 b = op.b.As<float>(), y = op.y.As<float>(), n = op.n](Stream&) {
    ParallelRuns(threads, n, kSerialElements, [&](int64_t begin, int64_t end) {
      add(a + begin, b + begin, y + begin, end - begin);
    });
  }};
}

}  // namespace trainyard::kernels
