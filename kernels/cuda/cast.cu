#include "kernels/cuda/cast.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

struct Unchanged {
  __device__ float operator()(float x) const { return x; }
};

}  // namespace

void LaunchCast(Stream& stream, const Buffer& x, const Buffer& y, int64_t n) {
  if (x.dtype == DType::kF32) {
    WithElement(y.dtype, [&]<typename T>() {
      LaunchMap(stream, Unchanged{}, n, y.As<T>(), static_cast<const float*>(x.As<float>()));
    });
    return;
  }
  WithElement(x.dtype, [&]<typename T>() {
    LaunchMap(stream, Unchanged{}, n, y.As<float>(), static_cast<const T*>(x.As<T>()));
  });
}

absl::StatusOr<Kernel> CudaDevice::Prepare(const Cast& op) {
  const bool narrows = op.x.dtype == DType::kF32;
  absl::Status status = narrows ? RequireTypes("cast", {{"x", op.x}, {"y", op.y, op.y.dtype}})
                                : RequireTypes("cast", {{"x", op.x, op.x.dtype}, {"y", op.y}});
  const DType type = narrows ? op.y.dtype : op.x.dtype;
  status.Update(RequireElement("cast", type));
  if (!status.ok()) return status;
  return Kernel{.launch = [op](Stream& stream) { LaunchCast(stream, op.x, op.y, op.n); }};
}

}  // namespace trainyard::kernels::cuda
