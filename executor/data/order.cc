#include "executor/data/order.h"

#include "kernels/random.h"

namespace trainyard::data {

namespace {

// Streams of the counter-based generator: far from the small ones that a plan gives its dropouts.
constexpr uint32_t kWindowStream = 0xDA7A0001;
constexpr uint32_t kPermutationStream = 0xDA7A0002;

// An odd number of rounds above Luby and Rackoff's four: half-blocks here may be a few bits only.
constexpr uint32_t kRounds = 7;

// A permutation of [0, 4^half_bits): a Feistel network whose round function is Philox.
uint64_t Feistel(uint64_t seed, uint64_t epoch, int half_bits, uint64_t value) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const kernels::Random4 r =
        kernels::Philox4x32(seed, static_cast<uint32_t>(right), static_cast<uint32_t>(epoch),
                            (static_cast<uint32_t>(epoch >> 32) << 4) | round, kPermutationStream);
    const uint64_t next = left ^ (((uint64_t{r.v[0]} << 32) | r.v[1]) & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

int64_t BatchOfStep(int64_t step, const std::vector<Skip>& skips) {
  int64_t batch = step;
  for (const Skip& skip : skips) {
    if (skip.step <= step) batch += skip.batches;
  }
  return batch;
}

int64_t Order::Sample(int64_t index) const {
  const auto size = static_cast<uint64_t>(size_);
  const auto i = static_cast<uint64_t>(index);
  if (with_replacement_) {
    const kernels::Random4 r = kernels::Philox4x32(
        seed_, static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, kWindowStream);
    const uint64_t bits = (uint64_t{r.v[0]} << 32) | r.v[1];
    // The high half of the product is uniform to within size / 2^64 (Lemire 2019).
    return static_cast<int64_t>((static_cast<unsigned __int128>(bits) * size) >> 64);
  }
  int half_bits = 0;
  while ((uint64_t{1} << (2 * half_bits)) < size) ++half_bits;
  // Walks the cycle until it is back inside; the domain is less than four times the size.
  uint64_t value = i % size;
  do {
    value = Feistel(seed_, i / size, half_bits, value);
  } while (value >= size);
  return static_cast<int64_t>(value);
}

}  // namespace trainyard::data
