#pragma once

#include <cstdint>
#include <vector>

namespace trainyard::data {

// The largest images that are read. A progressive JPEG of so many pixels takes 0.5 GiB while it is
// decoded, anything else 0.2 GiB.
inline constexpr int64_t kMostSide = 16384;                // pixels
inline constexpr int64_t kMostPixels = int64_t{64} << 20;  // height * width

struct ImageSize {
  int64_t height = 0, width = 0;
};

// Pixels [x, x + width) by [y, y + height) of an image.
struct PixelBox {
  int64_t x = 0, y = 0, width = 0, height = 0;
};

// A part of an image, decoded, its sides perhaps divided by 2, 4 or 8. Pixel (0, 0) of `bytes` is
// pixel (x, y) of the image so reduced.
struct Pixels {
  int64_t x = 0, y = 0, width = 0, height = 0;
  std::vector<uint8_t> bytes;  // at least [height, width, channels]; grows, never shrinks
};

// What to decode: at least `box` of the whole image, in 3 channels (RGB) or 1 (luma, ITU-R 601).
// `reduction` is 1, or at most 2, 4 or 8: by how much the sides may shrink; the decoder says by how
// much they did.
struct DecodeRequest {
  PixelBox box;
  int64_t channels = 3;
  int64_t reduction = 1;
};

}  // namespace trainyard::data
