#include "kernels/cuda/cast.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/map.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

struct Unchanged {
  __device__ float operator()(float x) const { return x; }
};

}  // namespace

void LaunchCast(Stream& stream, const Buffer& x, const Buffer& y, int64_t n) {
  if (x.dtype == DType::kF32) {
    ForElement(y.dtype, [&]<typename T>() {
      LaunchMap(stream, Unchanged{}, n, y.As<T>(), static_cast<const float*>(x.As<float>()));
    });
    return;
  }
  ForElement(x.dtype, [&]<typename T>() {
    LaunchMap(stream, Unchanged{}, n, y.As<float>(), static_cast<const T*>(x.As<T>()));
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const Cast& op) {
  return Kernel{.launch = [op](Stream& stream) { LaunchCast(stream, op.x, op.y, op.n); }};
}

}  // namespace trainyard::kernels::cuda
