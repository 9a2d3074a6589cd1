#pragma once

// Counter-based randomness: Philox 4x32 with 10 rounds (Salmon et al., SC 2011). The same inputs
// give the same bits on every device, rank and thread.

#include <cstdint>

#if defined(__CUDACC__)
#define TY_HOST_DEVICE __host__ __device__
#else
#define TY_HOST_DEVICE
#endif

namespace trainyard::kernels {

struct Random4 {
  uint32_t v[4];
};

TY_HOST_DEVICE inline Random4 Philox4x32(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                         uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Counter layout for draws inside a step: element block (4 elements), sample within the global
// batch, step, stream. Steps and samples past 2^32 wrap; streams are small integers given by the
// plan.
TY_HOST_DEVICE inline Random4 StepRandom(uint64_t seed, uint32_t stream, int64_t step,
                                         int64_t sample, int64_t block) {
  return Philox4x32(seed, static_cast<uint32_t>(block), static_cast<uint32_t>(sample),
                    static_cast<uint32_t>(step), stream);
}

// A uniform number in [0, 1), a multiple of 2^-24.
TY_HOST_DEVICE inline float UnitUniform(uint32_t bits) {
  return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f);
}

}  // namespace trainyard::kernels
