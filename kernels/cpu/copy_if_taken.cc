#include "kernels/ops/copy_if_taken.h"

#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/step_taken.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const CopyIfTaken& op) {
  return Kernel{[op](Stream&) {
    if (IsTaken(op.grad_scale)) memcpy(op.y.data, op.x.data, op.n * sizeof(float));
  }};
}

}  // namespace trainyard::kernels
