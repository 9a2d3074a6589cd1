#include "kernels/ops/add.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/map.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

struct Plus {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// A, the type of a and y, is T or float.
template <typename T, typename A>
Kernel AddWith(const Add& op) {
  const A* a = op.a.As<A>();
  const T* b = op.b.As<T>();
  return Kernel{.launch = [a, b, y = op.y.As<A>(), n = op.n](Stream& stream) {
    LaunchMap(stream, Plus{}, n, y, a, b);
  }};
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const Add& op) {
  const DType type = op.b.dtype;
  const bool mixed = op.a.dtype != type;
  return ForElement(
      type, [&]<typename T>() { return mixed ? AddWith<T, float>(op) : AddWith<T, T>(op); });
}

}  // namespace trainyard::kernels::cuda
