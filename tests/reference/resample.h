#pragma once

#include <cstdint>
#include <vector>

namespace trainyard::reference {

// `begin` to `end` of an axis becomes `out` pixels; only [low, high) exists.
struct ResampleAxis {
  double begin, end;
  int64_t low, high, out;
};

// Pillow's BILINEAR over an image of bytes [.., width, channels], both axes at once.
std::vector<double> Resample(const std::vector<uint8_t>& pixels, int64_t width, int64_t channels,
                             const ResampleAxis& x, const ResampleAxis& y);

}  // namespace trainyard::reference
