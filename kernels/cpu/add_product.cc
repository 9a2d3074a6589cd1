#include "kernels/ops/add_product.h"

#include <cstring>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Prepare(const AddProduct& op) {
  const DType type = op.y.dtype;
  absl::Status ok =
      CheckOperands("add_product", {{"base", op.base, type}, {"y", op.y, type}, {"a", op.a, type}});
  if (ok.ok()) ok = CheckSizes("add_product", {{"rows", op.rows}, {"cols", op.cols}});
  if (ok.ok() && (op.first < 0 || op.first + op.n > op.cols)) {
    ok = absl::InvalidArgumentError("add_product: the columns are not y's");
  }
  if (!ok.ok()) return ok;
  const auto size = SizeOf(type);
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
