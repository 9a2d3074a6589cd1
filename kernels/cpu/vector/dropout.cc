#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Eight counters at a time, each 32-bit word in the low half of a 64-bit lane.
constexpr int kBlocks = 8;
typedef uint64_t Words __attribute__((vector_size(8 * kBlocks)));

// Philox4x32 of kernels/random.h for blocks first .. first + 7; bits[4 * b + w] is word w of block
// b.
TRAINYARD_INLINE void PhiloxBlocks(uint64_t key, uint32_t first, uint32_t c1_in, uint32_t c2_in,
                                   uint32_t c3_in, uint32_t* bits) {
  constexpr uint64_t kLow = 0xffffffffu;
  Words c0 = (Words{0, 1, 2, 3, 4, 5, 6, 7} + uint64_t{first}) & kLow;
  Words c1 = Words{} + uint64_t{c1_in};
  Words c2 = Words{} + uint64_t{c2_in};
  Words c3 = Words{} + uint64_t{c3_in};
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words p0 = c0 * uint64_t{0xD2511F53u};
    const Words p1 = c2 * uint64_t{0xCD9E8D57u};
    c0 = (p1 >> 32) ^ c1 ^ uint64_t { k0 };
    c2 = (p0 >> 32) ^ c3 ^ uint64_t { k1 };
    c1 = p1 & kLow;
    c3 = p0 & kLow;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int b = 0; b < kBlocks; ++b) {
    bits[4 * b] = static_cast<uint32_t>(c0[b]);
    bits[4 * b + 1] = static_cast<uint32_t>(c1[b]);
    bits[4 * b + 2] = static_cast<uint32_t>(c2[b]);
    bits[4 * b + 3] = static_cast<uint32_t>(c3[b]);
  }
}

template <typename T>
void DropoutOfRange(const DropoutRange<T>& r) {
  constexpr int kElements = 4 * kBlocks;
  const float keep_scale = 1.0f / (1.0f - r.p);
  uint32_t bits[kElements];
  for (int64_t i = 0; i < r.n; i += kElements) {
    PhiloxBlocks(r.seed, static_cast<uint32_t>((r.begin + i) / 4), static_cast<uint32_t>(r.sample),
                 static_cast<uint32_t>(r.step), r.stream, bits);
    const int64_t end = r.n - i < kElements ? r.n - i : kElements;
    for (int64_t j = 0; j < end; j += kLanes) {
      VecI draws;
      __builtin_memcpy(&draws, bits + j, sizeof(draws));
      const VecU top = reinterpret_cast<VecU>(draws) >> 8;
      const VecF uniform =
          __builtin_convertvector(reinterpret_cast<VecI>(top), VecF) * (1.0f / 16777216.0f);
      const int64_t n = end - j < kLanes ? end - j : kLanes;
      const VecF kept = LoadUpTo(r.x + i + j, n) * keep_scale;
      StoreUpTo(r.y + i + j, uniform >= r.p ? kept : VecF{}, n);
    }
  }
}

template <typename T>
void RegisterDropout(ElementLoops<T>& loops) {
  loops.dropout = DropoutOfRange<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterDropout)

}  // namespace trainyard::kernels::TRAINYARD_ISA
