#include "kernels/ops/fold.h"

#include "kernels/cpu/cpu_device.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const Fold& op) {
  if (op.total.dtype == DType::kF32) {
    return Bind(Add{.a = op.total, .b = op.part, .y = op.total, .n = op.n});
  }
  return Kernel{[part = op.part.As<double>(), total = op.total.As<double>(), n = op.n](Stream&) {
    for (int64_t i = 0; i < n; ++i) total[i] += part[i];
  }};
}

}  // namespace trainyard::kernels
