#include "kernels/ops/transpose.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

// Works in blocks whose source and destination fit the L1 cache.
absl::StatusOr<Kernel> CpuDevice::Bind(const Transpose& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{[run = LoopsOf<T>(vectors_).transpose, threads = threads_, op](Stream&) {
      constexpr int64_t kBlock = 64;
      const int64_t across = (op.cols + kBlock - 1) / kBlock;
      const int64_t blocks = (op.rows + kBlock - 1) / kBlock * across;
      const int64_t grain = std::max<int64_t>(1, kSerialElements * blocks / (op.rows * op.cols));
      ParallelFor(threads, op.batch * blocks, grain, [&](int64_t b) {
        const int64_t image = b / blocks * op.rows * op.cols;
        const int64_t i = b % blocks / across * kBlock, j = b % blocks % across * kBlock;
        run(op.x.As<T>() + image + i * op.cols + j, std::min(kBlock, op.rows - i),
            std::min(kBlock, op.cols - j), op.cols, op.y.As<T>() + image + j * op.rows + i,
            op.rows);
      });
    }};
  });
}

}  // namespace trainyard::kernels
