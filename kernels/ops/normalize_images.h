#pragma once

#include <array>

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = (x / 255 - mean) / std, channel by channel: what a model sees of the bytes of images.
//   x: u8 [pixels, channels]; y: E, alike; channels in [1, kMostChannels]
//   places: i32 [images, 3], optional: dy, dx and mirrored (0: not) of each image, any numbers. A
//     crop of it is normalised then: pixel (r, c) is that at (r + dy, (mirrored ? width - 1 - c :
//     c)
//     + dx) of x, and black, bytes of 0, where x has none.
// A function of one byte that is worked out in double precision and rounded to fp32, then to E: the
// same bits on every device.
template <typename T>
struct NormalizeImagesOf {
  static constexpr const char* kName = "normalize_images";
  static constexpr int64_t kMostChannels = 3;
  static constexpr int kBytes = 256;    // values of a byte
  static constexpr int64_t kPlace = 3;  // numbers of a place

  T x, places, y;
  int64_t pixels = 0, channels = 0;
  int64_t height = 0, width = 0;  // with places: of an image; pixels = images * height * width
  std::array<double, kMostChannels> mean = {}, std = {1, 1, 1};

  // 1 where places say of whole images, or there are none.
  int64_t whole() const {
    return !places || (height > 0 && width > 0 && pixels % (height * width) == 0) ? 1 : 0;
  }

  // What `byte` of a channel becomes.
  float ValueOf(int64_t channel, int byte) const {
    return static_cast<float>((byte / 255.0 - mean[channel]) / std[channel]);
  }
  TY_FIELDS(Read(x), Read(places), Write(y), pixels, channels, height, width, mean, std)
};
using NormalizeImages = NormalizeImagesOf<Buffer>;

}  // namespace trainyard::kernels
