#include "kernels/ops/add_product.h"

#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {

absl::StatusOr<Kernel> CudaDevice::Prepare(const AddProduct& op) {
  const DType type = op.y.dtype;
  absl::Status status =
      RequireTypes("add_product", {{"base", op.base, type}, {"y", op.y, type}, {"a", op.a, type}});
  status.Update(RequirePositive("add_product", {{"rows", op.rows}, {"cols", op.cols}}));
  if (status.ok() && (op.first < 0 || op.first + op.n > op.cols)) {
    status = absl::InvalidArgumentError("cuda add_product: the columns are not y's");
  }
  if (!status.ok()) return status;
  const auto size = SizeOf(type);
  absl::StatusOr<Kernel> add = Prepare(ProductOf(op));
  if (!add.ok() || op.y.data == op.base.data) return add;
  const auto bytes = static_cast<size_t>(op.rows * op.cols * size);
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
