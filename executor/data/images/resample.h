#pragma once

// Antialiased bilinear resampling, as Pillow's BILINEAR and torchvision's with antialias=True: a
// triangle filter whose support grows with the reduction.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "executor/data/images/vector/loops.h"

namespace trainyard::data {

// Which source pixels make each target pixel of one axis, and with which weights (of sum 1).
struct Taps {
  std::vector<int32_t> first, count;  // [out], within the source
  std::vector<float> weights;         // [out][stride]
  int64_t stride = 0;
};

// `begin` to `end` of a source axis becomes `out` pixels; only source pixels [low, high) exist, and
// their number is counted from `origin`. `mirrored`: in reverse order.
struct Axis {
  double begin = 0, end = 0;
  int64_t low = 0, high = 0;
  int64_t origin = 0;
  int64_t out = 0;
  bool mirrored = false;
};

// Reuses the memory of `taps`.
void MakeTaps(const Axis& axis, Taps& taps);

// The loops for each instruction set of this machine, the best one first.
absl::Span<const ResampleLoops* const> SupportedLoops();

// Resamples pixels of `channels` interleaved bytes, 1 or 3, to bytes: rows first, then columns, and
// what comes out is rounded once. Thread-compatible; keeps its memory.
class Resampler {
 public:
  explicit Resampler(const ResampleLoops& loops = *SupportedLoops()[0]) : loops_(loops) {}

  struct Source {
    const uint8_t* pixels = nullptr;
    int64_t width = 0;  // of a row in memory, in pixels
    int64_t channels = 3;
  };

  // `x.origin` and `y.origin` are those of the first pixel of `source`.
  void Resample(const Source& source, const Axis& x, const Axis& y, uint8_t* out);

 private:
  const ResampleLoops& loops_;
  Taps x_, y_;
  std::vector<float> rows_;  // of the target in height, of the source in width
};

}  // namespace trainyard::data
