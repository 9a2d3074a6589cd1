#include "kernels/ops/copy_if_taken.h"

#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Prepare(const CopyIfTaken& op) {
  const absl::Status ok =
      CheckOperands("copy if taken", {{"x", op.x}, {"y", op.y}, {"grad_scale", op.grad_scale}});
  if (!ok.ok()) return ok;
  return Kernel{[op](Stream&) {
    if (IsTaken(op.grad_scale)) memcpy(op.y.data, op.x.data, op.n * sizeof(float));
  }};
}

}  // namespace trainyard::kernels
