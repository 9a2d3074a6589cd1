#pragma once

// Attention on the CPU (cpu/vector/attention.cc).

#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::scratch {

// Of one thread, in floats: keys, values and a block of scores, each rounded up to 16 floats. It is
// enough for either direction on every instruction set.
constexpr int64_t AttentionFloats(int64_t time, int64_t head_dim) {
  constexpr int64_t kBlock = 16;
  const int64_t padded = RoundUp(head_dim, 16);
  return 4 * time * padded + 5 * kBlock * padded + 2 * kBlock * time;
}
constexpr int64_t Attention(int64_t time, int64_t head_dim, int64_t threads) {
  return kFloat * threads * AttentionFloats(time, head_dim);
}

}  // namespace trainyard::kernels::scratch
