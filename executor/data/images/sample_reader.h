#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/data/images/crop.h"
#include "executor/data/images/decoder.h"
#include "executor/data/images/draws.h"
#include "executor/data/images/resample.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// From an encoded image to a sample: decodes no more than the crop, resizes and mirrors it.
// Thread-compatible; keeps its memory from image to image.
class SampleReader {
 public:
  // `transform` must come from ResolveSpec.
  explicit SampleReader(const v1::ImageTransform& transform);

  // Writes u8 [size, size, channels]. With `draws` as training sees the image, else as evaluation
  // does. kInvalidArgument says what is wrong with `file`.
  absl::Status Read(absl::Span<const uint8_t> file, Draws* draws, uint8_t* sample);

 private:
  int64_t ReductionFor(const Crop& crop) const;

  const v1::ImageTransform transform_;
  const CropRange range_;
  ImageDecoder decoder_;
  Pixels pixels_;
  Resampler resampler_;
};

}  // namespace trainyard::data
