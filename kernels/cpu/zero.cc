#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const Zero& op) {
  const int64_t bytes = op.n * SizeOf(op.x.dtype);
  return Kernel{[threads = threads_, x = static_cast<char*>(op.x.data), bytes](Stream&) {
    ParallelRuns(threads, bytes, int64_t{256} << 10,
                 [&](int64_t begin, int64_t end) { std::memset(x + begin, 0, end - begin); });
  }};
}

}  // namespace trainyard::kernels
