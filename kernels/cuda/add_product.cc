#include "kernels/ops/add_product.h"

#include <utility>

#include "kernels/cuda/cuda_device.h"

namespace trainyard::kernels::cuda {

absl::StatusOr<Kernel> CudaDevice::Bind(const AddProduct& op) {
  absl::StatusOr<Kernel> add = Prepare(ProductOf(op));
  if (!add.ok() || op.y.data == op.base.data) return add;
  const auto bytes = static_cast<size_t>(op.rows * op.cols * SizeOf(op.y.dtype));
  return Kernel{.launch =
                    [launch = std::move(add->launch), from = op.base.data, to = op.y.data,
                     bytes](Stream& stream) {
                      const CudaStream& on = CudaStream::From(stream);
                      on.fault().Note(
                          cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on.handle()),
                          "add_product");
                      launch(stream);
                    },
                .scratch_bytes = add->scratch_bytes,
                .tune = std::move(add->tune)};
}

}  // namespace trainyard::kernels::cuda
