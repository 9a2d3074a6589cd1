#include "kernels/ops/rotary.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/require.h"

namespace trainyard::kernels::cuda {
namespace {

// A thread per pair of one position, for every sequence and head: the angle, in double precision
// because positions reach millions of turns, is worth computing once.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    RotaryKernel(const T* x, T* y, int64_t batch, int64_t time, int64_t heads, int64_t rotated,
                 int64_t head_dim, double theta, double sign) {
  const int64_t half = head_dim / 2;
  const int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair >= time * half) return;
  const int64_t t = pair / half, i = pair % half;
  const double turn = pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  double sine, cosine;
  sincos(sign * static_cast<double>(t) * turn, &sine, &cosine);
  const float s = static_cast<float>(sine), c = static_cast<float>(cosine);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = ((b * time + t) * heads + h) * head_dim + i;
      const float low = ToFloat(x[at]), high = ToFloat(x[at + half]);
      y[at] = FromFloat<T>(h < rotated ? low * c - high * s : low);
      y[at + half] = FromFloat<T>(h < rotated ? high * c + low * s : high);
    }
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Prepare(const Rotary& op) {
  const DType type = op.x.dtype;
  absl::Status status = RequireTypes("rotary", {{"x", op.x, type}, {"y", op.y, type}});
  status.Update(RequirePositive("rotary", {{"batch", op.batch},
                                           {"time", op.time},
                                           {"heads", op.heads},
                                           {"rotated", op.rotated},
                                           {"head_dim", op.head_dim}}));
  if (!status.ok()) return status;
  if (op.head_dim % 2 != 0 || op.rotated > op.heads) {
    return absl::InvalidArgumentError(absl::StrCat("rotary: head_dim ", op.head_dim, ", ",
                                                   op.rotated, " of ", op.heads, " heads"));
  }
  return ForElement("rotary", type, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      Launch(stream, {.grid = Blocks(CeilDiv(op.time * op.head_dim / 2, kThreads))},
             RotaryKernel<T>, op.x.As<T>(), op.y.As<T>(), op.batch, op.time, op.heads, op.rotated,
             op.head_dim, static_cast<double>(op.theta), op.inverse ? -1.0 : 1.0);
    }};
  });
}

}  // namespace trainyard::kernels::cuda
