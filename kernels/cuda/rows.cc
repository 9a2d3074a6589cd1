#include "kernels/ops/rows.h"

#include "kernels/cuda/cuda_device.h"

namespace trainyard::kernels::cuda {

absl::StatusOr<Kernel> CudaDevice::Bind(const TakeRows& op) {
  return Kernel{.launch = [this, op](Stream& stream) {
    Copy(stream, op.y.data, op.x.From(op.first_row * op.cols).data,
         static_cast<size_t>(op.rows * op.cols * SizeOf(op.x.dtype)));
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const GatherRows& op) {
  return Kernel{.launch = [this, op](Stream& stream) {
    Copy(stream, op.y.From(op.first_row * op.cols).data, op.x.data,
         static_cast<size_t>(op.rows * op.cols * SizeOf(op.x.dtype)));
  }};
}

}  // namespace trainyard::kernels::cuda
