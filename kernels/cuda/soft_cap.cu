#include "kernels/ops/soft_cap.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/map.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

struct SoftCap {
  float cap;
  __device__ float operator()(float x) const { return tanhf(x / cap) * cap; }
};

struct SoftCapGradient {
  float cap;
  __device__ float operator()(float y, float dy) const {
    const float tanh = y / cap;
    return dy * (1.0f - tanh * tanh);
  }
};

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const SoftCapForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    const T* x = op.x.As<T>();
    return Kernel{.launch = [x, y = op.y.As<T>(), n = op.n, f = SoftCap{op.cap}](Stream& stream) {
      LaunchMap(stream, f, n, y, x);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const SoftCapBackward& op) {
  return ForElement(op.y.dtype, [&]<typename T>() {
    const T* y = op.y.As<T>();
    const T* dy = op.dy.As<T>();
    return Kernel{.launch = [y, dy, dx = op.dx.As<T>(), n = op.n, f = SoftCapGradient{op.cap}](
                                Stream& stream) { LaunchMap(stream, f, n, dx, y, dy); }};
  });
}

}  // namespace trainyard::kernels::cuda
