#pragma once

// Functions of one number without the branches of the exact ones: the compiler moves no load of a
// later element ahead of a branch.

#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

#if defined(__CUDACC__)  // the emulator of tests/gpu brings its own
// 2^x to two units in the last place, 0 below 2^-126.
__device__ inline float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
#endif

// 1 / x within two units in the last place, 0 from 2^126 on.
__device__ inline float Reciprocal(float x) { return __fdividef(1.0f, x); }

}  // namespace trainyard::kernels::cuda
