#pragma once

#include "kernels/cuda/element.cuh"

namespace trainyard::kernels::cuda {

// Elements per thread: four independent loads in flight hide the latency of memory.
inline constexpr int kPerThread = 4;
inline constexpr int64_t kMapTile = int64_t{kThreads} * kPerThread;

// y[i] = f(in[i]...) for i in [0, n). A thread writes only what it read itself, and after it has
// read it, so that y may be one of the inputs. Neighbouring threads touch neighbouring elements.
template <typename F, typename Y, typename... In>
__global__ void __launch_bounds__(kThreads) MapKernel(F f, int64_t n, Y* y, const In*... in) {
  const int64_t first = blockIdx.x * kMapTile + threadIdx.x;
  Y out[kPerThread];
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int64_t i = first + j * kThreads;
    if (i < n) out[j] = FromFloat<Y>(f(ToFloat(in[i])...));
  }
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int64_t i = first + j * kThreads;
    if (i < n) y[i] = out[j];
  }
}

template <typename F, typename Y, typename... In>
void LaunchMap(Stream& stream, F f, int64_t n, Y* y, const In*... in) {
  if (n <= 0) return;
  Launch(stream, {.grid = Blocks(CeilDiv(n, kMapTile))}, MapKernel<F, Y, In...>, f, n, y, in...);
}

}  // namespace trainyard::kernels::cuda
