#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y = (x / 255 - mean) / std, channel by channel: what a model sees of the bytes of images.
//   x: u8 [pixels, channels]; y: E, alike; channels in [1, kMostChannels]
// A function of one byte that is worked out in double precision and rounded to fp32, then to E: the
// same bits on every device.
struct NormalizeImages {
  static constexpr int64_t kMostChannels = 3;
  static constexpr int kBytes = 256;  // values of a byte

  Buffer x, y;
  int64_t pixels = 0, channels = 0;
  double mean[kMostChannels] = {}, std[kMostChannels] = {1, 1, 1};

  // What `byte` of a channel becomes.
  float ValueOf(int64_t channel, int byte) const {
    return static_cast<float>((byte / 255.0 - mean[channel]) / std[channel]);
  }
};

}  // namespace trainyard::kernels
