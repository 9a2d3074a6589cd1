#include "kernels/ops/add_product.h"

#include <cstring>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const AddProduct& op) {
  const auto size = SizeOf(op.y.dtype);
  absl::StatusOr<Kernel> add = Prepare(ProductOf(op));
  if (!add.ok() || op.y.data == op.base.data) return add;
  return Kernel{[launch = std::move(add->launch), threads = threads_, n = op.rows * op.cols, size,
                 from = static_cast<const char*>(op.base.data),
                 to = static_cast<char*>(op.y.data)](Stream& stream) {
                  ParallelRuns(threads, n, kSerialElements, [&](int64_t begin, int64_t end) {
                    std::memcpy(to + begin * size, from + begin * size, (end - begin) * size);
                  });
                  launch(stream);
                },
                add->scratch_bytes};
}

}  // namespace trainyard::kernels
