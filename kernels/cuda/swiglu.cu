#include "kernels/ops/swiglu.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fast_math.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

__device__ float Sigmoid(float x) { return Reciprocal(1.0f + expf(-x)); }

// Offsets of the pack of y that a thread makes, and of its gate in x; the pack of `up` lies cols
// further.
template <int kPackSize>
struct GatePlace {
  __device__ GatePlace(int64_t rows, int64_t cols) {
    const int64_t packs = cols / kPackSize, i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    const RowAndCol at = RowAndColOf(i, packs);
    inside = at.row < rows;
    y = i * kPackSize;
    gate = (2 * at.row * packs + at.col) * kPackSize;
  }
  bool inside;
  int64_t y, gate;
};

// A thread per pack of y.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(const T* x, T* y, int64_t rows, int64_t cols) {
  const GatePlace<kPackSize> at(rows, cols);
  if (!at.inside) return;
  Pack<T, kPackSize> gate, up;
  gate.Load(x + at.gate);
  up.Load(x + at.gate + cols);
  float out[kPackSize];
#pragma unroll
  for (int j = 0; j < kPackSize; ++j) out[j] = gate[j] * Sigmoid(gate[j]) * up[j];
  gate.Set(out);
  gate.Store(y + at.y);
}

// With s = Sigmoid(g): dup = dy g s,  dgate = dy u (s + g s (1 - s)). A thread writes what it alone
// read: dx may be x.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads)
    SwiGluBackwardKernel(const T* x, const T* dy, T* dx, int64_t rows, int64_t cols) {
  const GatePlace<kPackSize> at(rows, cols);
  if (!at.inside) return;
  Pack<T, kPackSize> gate, up, gradient;
  gate.Load(x + at.gate);
  up.Load(x + at.gate + cols);
  gradient.Load(dy + at.y);
  float of_gate[kPackSize], of_up[kPackSize];
#pragma unroll
  for (int j = 0; j < kPackSize; ++j) {
    const float g = gate[j], u = up[j], d = gradient[j], s = Sigmoid(g);
    of_gate[j] = d * u * s * (1.0f + g * (1.0f - s));
    of_up[j] = d * g * s;
  }
  gate.Set(of_gate);
  gate.Store(dx + at.gate);
  up.Set(of_up);
  up.Store(dx + at.gate + cols);
}

// Calls launch.operator()<kPackSize>(): by packs if the buffers are `aligned` and packs divide
// cols, else element by element.
template <typename T, typename F>
void WithGatePack(int64_t cols, bool aligned, const F& launch) {
  if (aligned) return WithPack<T>(cols, launch);
  launch.template operator()<1>();
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const SwiGluForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      const T* x = op.x.As<T>();
      T* y = op.y.As<T>();
      WithGatePack<T>(op.cols, Aligned(kPackBytes, {x, y}), [&]<int kPackSize>() {
        Launch(stream, ThreadForEach(op.rows * (op.cols / kPackSize)), SwiGluKernel<T, kPackSize>,
               x, y, op.rows, op.cols);
      });
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const SwiGluBackward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op](Stream& stream) {
      const T* x = op.x.As<T>();
      const T* dy = op.dy.As<T>();
      T* dx = op.dx.As<T>();
      WithGatePack<T>(op.cols, Aligned(kPackBytes, {x, dy, dx}), [&]<int kPackSize>() {
        Launch(stream, ThreadForEach(op.rows * (op.cols / kPackSize)),
               SwiGluBackwardKernel<T, kPackSize>, x, dy, dx, op.rows, op.cols);
      });
    }};
  });
}

}  // namespace trainyard::kernels::cuda
