#pragma once

#include <cstdint>

#include "kernels/random.h"

namespace trainyard::data {

// The random draws of one visit to a training sample, one after the other: a function of (seed,
// epoch, sample) alone, whoever draws and when.
class Draws {
 public:
  Draws(uint64_t seed, int64_t epoch, int64_t sample)
      : seed_(seed), epoch_(epoch), sample_(sample) {}

  // In [0, 1), 32 bits.
  double Uniform() { return static_cast<double>(Next()) * (1.0 / 4294967296.0); }
  double Uniform(double low, double high) { return low + (high - low) * Uniform(); }

  // In [0, n) for n in [1, 2^31].
  int64_t Below(int64_t n) { return static_cast<int64_t>(uint64_t{Next()} * n >> 32); }

  bool Coin() { return (Next() >> 31) != 0; }

 private:
  // Far from the streams of a plan, beside those of Order.
  static constexpr uint32_t kStream = 0xDA7A0003;

  uint32_t Next() {
    if (drawn_ % 4 == 0) {
      const auto sample = static_cast<uint64_t>(sample_);
      block_ =
          kernels::Philox4x32(seed_, static_cast<uint32_t>(sample), static_cast<uint32_t>(epoch_),
                              static_cast<uint32_t>(sample >> 32) << 8 | drawn_ / 4, kStream);
    }
    return block_.v[drawn_++ % 4];
  }

  uint64_t seed_;
  int64_t epoch_, sample_;
  uint32_t drawn_ = 0;  // at most 1,023
  kernels::Random4 block_{};
};

}  // namespace trainyard::data
