#include "kernels/ops/rows.h"

#include <cstring>

#include "kernels/cpu/cpu_device.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const TakeRows& op) {
  return Kernel{[op](Stream&) {
    std::memcpy(op.y.data, op.x.From(op.first_row * op.cols).data,
                op.rows * op.cols * SizeOf(op.x.dtype));
  }};
}

absl::StatusOr<Kernel> CpuDevice::Bind(const GatherRows& op) {
  return Kernel{[op](Stream&) {
    std::memcpy(op.y.From(op.first_row * op.cols).data, op.x.data,
                op.rows * op.cols * SizeOf(op.x.dtype));
  }};
}

}  // namespace trainyard::kernels
