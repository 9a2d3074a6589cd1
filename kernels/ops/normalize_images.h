#pragma once

#include <array>

#include "kernels/operand.h"

namespace trainyard::kernels {

// y = (x / 255 - mean) / std, channel by channel: makes the input of a model from the bytes of
// images.
//   x: u8 [pixels, channels]; y: E, the same shape; channels in [1, kMostChannels]
//   places: i32 [images, 3], optional: dy, dx and mirrored (0: no) of each image; any numbers are
//     valid. Each image is then cropped before it is normalised: pixel (r, c) of the crop is pixel
//     (r + dy, (mirrored ? width - 1 - c : c) + dx) of x, or black, bytes of 0, where x has no such
//     pixel.
// A value of y is a function of one byte, computed in double precision and rounded to fp32, then to
// E: the same bits on every device.
template <typename T>
struct NormalizeImagesOf {
  static constexpr const char* kName = "normalize_images";
  static constexpr int64_t kMostChannels = 3;
  static constexpr int kBytes = 256;    // values of a byte
  static constexpr int64_t kPlace = 3;  // numbers per image in `places`

  T x, places, y;
  int64_t pixels = 0, channels = 0;
  int64_t height = 0, width = 0;  // of images with places; pixels = images * height * width
  std::array<double, kMostChannels> mean = {}, std = {1, 1, 1};

  const char* Problem() const {
    if (channels > kMostChannels) return "there are more channels than 3";
    const bool whole = !places || (height > 0 && width > 0 && pixels % (height * width) == 0);
    return whole ? nullptr : "the pixels are no whole number of images";
  }

  // The normalised value of `byte` in a channel.
  float ValueOf(int64_t channel, int byte) const {
    return static_cast<float>((byte / 255.0 - mean[channel]) / std[channel]);
  }
  TY_FIELDS(Read(x, U8), Read(places, Optional(I32)), Write(y, E), pixels, channels,
            MayBeZero(height), MayBeZero(width), mean, std)
};
using NormalizeImages = NormalizeImagesOf<Buffer>;

}  // namespace trainyard::kernels
