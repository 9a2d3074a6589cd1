#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

// Threads share out elements, not rows: there may be few long rows or many short ones.
absl::StatusOr<Kernel> CpuDevice::Bind(const AddBias& op) {
  return Kernel{[add = vectors_.f32.add, threads = threads_, x = op.x.As<float>(),
                 bias = op.bias.As<float>(), y = op.y.As<float>(), n = op.rows * op.cols,
                 cols = op.cols](Stream&) {
    ParallelRuns(threads, n, kSerialElements, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t column = begin % cols;
        const int64_t count = std::min(cols - column, end - begin);
        add(x + begin, bias + column, y + begin, count);
        begin += count;
      }
    });
  }};
}

}  // namespace trainyard::kernels
