#include "kernels/ops/add.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

struct Plus {
  __device__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const Add& op) {
  const absl::Status types = RequireTypes("add", {{"a", op.a}, {"b", op.b}, {"y", op.y}});
  if (!types.ok()) return types;
  const float* a = op.a.As<float>();
  const float* b = op.b.As<float>();
  return Kernel{.launch = [a, b, y = op.y.As<float>(), n = op.n](Stream& stream) {
    LaunchMap(stream, Plus{}, n, y, a, b);
  }};
}

}  // namespace trainyard::kernels::cuda
