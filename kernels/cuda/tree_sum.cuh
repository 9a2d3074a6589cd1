#pragma once

// Sums in the binary tree that splits n at the largest power of two below n
// (kernels/ops/add_parts.h).

#include "kernels/cuda/launch.cuh"

namespace trainyard::kernels::cuda {

// Calls read(i, to) for i in [0, count), at most 128, which overwrites to[0..kWidth), and adds up
// what it gets. Two sums of as many parts each are added as soon as both are there. The sums stay
// in registers if kCount, which is `count` then, is not 0.
template <int kCount, int kWidth, typename Read>
__device__ void SumInTree(int count, float (&sum)[kWidth], Read read) {
  constexpr int kDeepest = 8;  // sums that wait: one for each bit of the number of parts
  constexpr int kMostWaiting = kCount == 0 ? kDeepest : kCount;
  float sums[kMostWaiting][kWidth];
  int waiting = 0;
  const auto fold = [&] {
    --waiting;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[waiting - 1][j] += sums[waiting][j];
  };
  const auto take = [&](int part) {
    read(part, sums[waiting++]);
#pragma unroll
    for (int pairs = part + 1; pairs % 2 == 0; pairs /= 2) fold();
  };
  if constexpr (kCount == 0) {
#pragma unroll 1
    for (int part = 0; part < count; ++part) take(part);
    while (waiting > 1) fold();
  } else {
#pragma unroll
    for (int part = 0; part < kCount; ++part) take(part);
#pragma unroll
    for (int left = kCount; left > 1; --left) {
      if (waiting > 1) fold();
    }
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum[j] = sums[0][j];
}

// launch.operator()<kCount>() for SumInTree of `count` parts: 0 but for those that are usual.
template <typename F>
auto WithCount(int64_t count, const F& launch) {
  switch (count) {
    case 1:
      return launch.template operator()<1>();
    case 2:
      return launch.template operator()<2>();
    case 4:
      return launch.template operator()<4>();
    case 8:
      return launch.template operator()<8>();
    default:
      return launch.template operator()<0>();
  }
}

}  // namespace trainyard::kernels::cuda
