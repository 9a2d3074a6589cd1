#pragma once

// Elements on the device: read into fp32, rounded from it to nearest with ties to even.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/element.h"

namespace trainyard::kernels::cuda {

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(BFloat16 x) {
  return __bfloat162float(__ushort_as_bfloat16(x.bits));
}
__device__ inline float ToFloat(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }

template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline BFloat16 FromFloat<BFloat16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
template <>
__device__ inline Float16 FromFloat<Float16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}

}  // namespace trainyard::kernels::cuda
