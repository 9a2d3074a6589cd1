#include "kernels/ops/add_parts.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/tree_sum.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// Where each of several buffers begins.
struct PartsInMemory {
  int count = 0;
  void* begin[TableList::kMost] = {};

  template <typename T>
  __device__ T* At(int i) const {
    return static_cast<T*>(begin[i]);
  }
  bool aligned() const {
    for (int i = 0; i < count; ++i) {
      if (!Aligned(kPackBytes, {begin[i]})) return false;
    }
    return true;
  }
};

PartsInMemory InMemory(const Tables& parts) {
  PartsInMemory all;
  for (int64_t i = 0; i < parts.list.count; ++i) all.begin[all.count++] = parts.At(i).data;
  return all;
}

// A thread per pack of y. It writes what it alone has read: y may be one of the parts.
template <typename T, int kPackSize, int kCount>
__global__ void __launch_bounds__(kThreads)
    AddPartsKernel(PartsInMemory parts, const float* bias, T* y, int64_t packs, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t at = i * kPackSize;
  float sum[kPackSize];
  SumInTree<kCount>(parts.count, sum, [&](int part, float(&to)[kPackSize]) {
    Pack<T, kPackSize> read;
    read.Load(parts.At<T>(part) + at);
#pragma unroll
    for (int j = 0; j < kPackSize; ++j) to[j] = read[j];
  });
  if (bias != nullptr) {
    const int64_t col = RowAndColOf(at, cols).col;
#pragma unroll
    for (int j = 0; j < kPackSize; ++j) sum[j] += bias[col + j];
  }
  Pack<T, kPackSize> added;
  added.Set(sum);
  added.Store(y + at);
}

template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads)
    SpreadKernel(const T* x, PartsInMemory copies, int64_t packs) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  Pack<T, kPackSize> read;
  read.Load(x + i * kPackSize);
  for (int copy = 0; copy < copies.count; ++copy) {
    read.Store(copies.At<T>(copy) + i * kPackSize);
  }
}

// y [rows, cols] = the sum of `parts` + bias.
template <typename Op>
Kernel SumOfParts(const Op& op, const PartsInMemory& parts) {
  return ForElement(op.y.dtype, [&]<typename T>() {
    const auto with = [&]<int kPackSize>() {
      return WithCount(parts.count, [&]<int kCount>() {
        return Kernel{.launch = [op, parts](Stream& stream) {
          const int64_t packs = op.rows * op.cols / kPackSize;
          Launch(stream, ThreadForEach(packs), AddPartsKernel<T, kPackSize, kCount>, parts,
                 OptionalAs<float>(op.bias), op.y.template As<T>(), packs, op.cols);
        }};
      });
    };
    const bool by_packs =
        op.cols % kPack<T> == 0 && parts.aligned() && Aligned(kPackBytes, {op.y.data});
    return by_packs ? with.template operator()<kPack<T>>() : with.template operator()<1>();
  });
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const AddParts& op) {
  return SumOfParts(op, InMemory(op.parts));
}

absl::StatusOr<Kernel> CudaDevice::Bind(const AddRows& op) {
  PartsInMemory parts;
  for (int64_t i = 0; i < op.count(); ++i) parts.begin[parts.count++] = op.Part(i).data;
  return SumOfParts(op, parts);
}

absl::StatusOr<Kernel> CudaDevice::Bind(const Spread& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{.launch = [op, copies = InMemory(op.copies)](Stream& stream) {
      const bool by_packs =
          op.n % kPack<T> == 0 && copies.aligned() && Aligned(kPackBytes, {op.x.data});
      const int64_t packs = by_packs ? op.n / kPack<T> : op.n;
      Launch(stream, ThreadForEach(packs),
             by_packs ? SpreadKernel<T, kPack<T>> : SpreadKernel<T, 1>, op.x.As<T>(), copies,
             packs);
    }};
  });
}

}  // namespace trainyard::kernels::cuda
