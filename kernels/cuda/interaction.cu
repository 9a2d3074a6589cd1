#include "kernels/ops/interaction.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// The features of one sample: x [width] and e [count, width].
template <typename T>
struct Features {
  const T* x;
  const T* e;
  int64_t width;

  __device__ float At(int64_t i, int64_t c) const {
    return ToFloat(i == 0 ? x[c] : e[(i - 1) * width + c]);
  }
};

__host__ __device__ inline int64_t ProductWidth(int64_t count, int64_t width) {
  return width + count * (count + 1) / 2;
}

// A block per sample, a thread per product; a sample's features stay in the first cache.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    InteractionKernel(const T* x, const T* e, T* y, int64_t count, int64_t width) {
  const int64_t b = blockIdx.x;
  const Features<T> f = {x + b * width, e + b * count * width, width};
  y += b * ProductWidth(count, width);
  for (int64_t c = threadIdx.x; c < width; c += kThreads) y[c] = f.x[c];
  for (int64_t p = threadIdx.x; p < count * (count + 1) / 2; p += kThreads) {
    // p = i (i - 1) / 2 + j; the root may be one off.
    int64_t i = static_cast<int64_t>((1.0f + sqrtf(1.0f + 8.0f * static_cast<float>(p))) / 2.0f);
    while (i * (i - 1) / 2 > p) --i;
    while (i * (i + 1) / 2 <= p) ++i;
    const int64_t j = p - i * (i - 1) / 2;
    float sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += f.At(i, c) * f.At(j, c);
    y[width + p] = FromFloat<T>(sum);
  }
}

// A block per sample, a thread per element of the gradient: df[i, c] = sum over j of g(i, j) f[j,
// c]. dx and de may be null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    InteractionBackwardKernel(const T* dy, const T* x, const T* e, T* dx, T* de, int64_t count,
                              int64_t width) {
  const int64_t b = blockIdx.x;
  const Features<T> f = {x + b * width, e + b * count * width, width};
  dy += b * ProductWidth(count, width);
  const T* g = dy + width;
  for (int64_t at = threadIdx.x; at < (count + 1) * width; at += kThreads) {
    const int64_t i = at / width, c = at % width;
    if ((i == 0 ? dx : de) == nullptr) continue;
    float sum = 0;
    for (int64_t j = 0; j < i; ++j) sum += ToFloat(g[i * (i - 1) / 2 + j]) * f.At(j, c);
    for (int64_t j = i + 1; j <= count; ++j) sum += ToFloat(g[j * (j - 1) / 2 + i]) * f.At(j, c);
    if (i == 0) {
      dx[b * width + c] = FromFloat<T>(sum + ToFloat(dy[c]));
    } else {
      de[(b * count + i - 1) * width + c] = FromFloat<T>(sum);
    }
  }
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const InteractionForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      Launch(stream, {.grid = Blocks(op.batch)}, InteractionKernel<T>, op.x.As<T>(), op.e.As<T>(),
             op.y.As<T>(), op.count, op.width);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const InteractionBackward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      Launch(stream, {.grid = Blocks(op.batch)}, InteractionBackwardKernel<T>, op.dy.As<T>(),
             op.x.As<T>(), op.e.As<T>(), OptionalAs<T>(op.dx), OptionalAs<T>(op.de), op.count,
             op.width);
    }};
  });
}

}  // namespace trainyard::kernels::cuda
