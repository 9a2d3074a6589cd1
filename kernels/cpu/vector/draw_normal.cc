#include "kernels/cpu/vector/loops.h"
#include "kernels/normal.h"

namespace trainyard::kernels::TRAINYARD_ISA {
namespace {

typedef double VecD __attribute__((vector_size(TRAINYARD_VECTOR_BYTES)));
typedef uint64_t VecL __attribute__((vector_size(TRAINYARD_VECTOR_BYTES)));

constexpr int kWide = TRAINYARD_VECTOR_BYTES / 8;
constexpr uint32_t kLow = 0xffffffffu;

// Philox4x32 (kernels/random.h) for the pairs first, first + 1, ...: words 0 and 1, and 2 and 3, as
// 64 bits each. A lane holds a word.
TRAINYARD_INLINE void PhiloxOf(uint64_t seed, uint64_t stream, VecL pair, VecL& a, VecL& b) {
  uint64_t k0 = seed & kLow, k1 = seed >> 32;
  VecL c0 = pair & kLow, c1 = pair >> 32, c2 = VecL{} + (stream & kLow),
       c3 = VecL{} + (stream >> 32);
  for (int round = 0; round < 10; ++round) {
    const VecL p0 = c0 * uint64_t{0xD2511F53u}, p1 = c2 * uint64_t{0xCD9E8D57u};
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c1 = p1 & kLow;
    c3 = p0 & kLow;
    k0 = (k0 + 0x9E3779B9u) & kLow;
    k1 = (k1 + 0xBB67AE85u) & kLow;
  }
  a = c0 << 32 | c1;
  b = c2 << 32 | c3;
}

}  // namespace

void DrawNormals(const DrawRange& r) {
  constexpr int kPairs = 64;  // at once
  alignas(TRAINYARD_VECTOR_BYTES) double square[kPairs], cosine[kPairs], sine[kPairs];
  float drawn[2 * kPairs];
  VecL lanes;
  for (int i = 0; i < kWide; ++i) lanes[i] = static_cast<uint64_t>(i);
  for (int64_t pair = r.first / 2; 2 * pair < r.first + r.n; pair += kPairs) {
    for (int i = 0; i < kPairs; i += kWide) {
      VecL a, b;
      PhiloxOf(r.seed, r.stream, lanes + static_cast<uint64_t>(pair + i), a, b);
      const auto made = NormalPairOf<VecD, VecL>(a, b);
      *reinterpret_cast<VecD*>(square + i) = made.square;
      *reinterpret_cast<VecD*>(cosine + i) = made.cosine;
      *reinterpret_cast<VecD*>(sine + i) = made.sine;
    }
    for (int i = 0; i < kPairs; ++i) {
      const double radius = r.std * __builtin_sqrt(square[i]);
      drawn[2 * i] = static_cast<float>(radius * cosine[i]);
      drawn[2 * i + 1] = static_cast<float>(radius * sine[i]);
    }
    const int64_t at = 2 * pair - r.first;  // of drawn[0]
    const int64_t begin = at < 0 ? -at : 0;
    const int64_t end = r.n - at < 2 * kPairs ? r.n - at : 2 * kPairs;
    for (int64_t i = begin; i < end; ++i) r.x[at + i] = drawn[i];
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
