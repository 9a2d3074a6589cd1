#include "executor/data/text/masking.h"

#include "kernels/random.h"

namespace trainyard::data {

namespace {

// Apart from the streams of order.cc, of images and of a plan's dropouts.
constexpr uint32_t kMaskStream = 0xDA7A0004;

double Unit(uint32_t bits) { return static_cast<double>(bits) * 0x1p-32; }

}  // namespace

void Mask(const Masking& masking, uint64_t seed, int64_t epoch, int64_t sample, int64_t n,
          int32_t* ids, int32_t* targets) {
  for (int64_t i = 0; i < n; ++i) {
    const kernels::Random4 r =
        kernels::Philox4x32(seed, static_cast<uint32_t>(i), static_cast<uint32_t>(sample),
                            static_cast<uint32_t>(epoch), kMaskStream);
    const bool drawn = Unit(r.v[0]) < masking.rate;
    targets[i] = drawn ? ids[i] : -1;
    if (!drawn || Unit(r.v[1]) >= 0.9) continue;
    const auto other = static_cast<int32_t>((uint64_t{r.v[2]} * masking.vocab) >> 32);
    ids[i] = Unit(r.v[1]) < 0.8 ? masking.token : other;
  }
}

}  // namespace trainyard::data
