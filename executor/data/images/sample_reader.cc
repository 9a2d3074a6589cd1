#include "executor/data/images/sample_reader.h"

#include <algorithm>

#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// How many decoded pixels a side are wanted per pixel of the sample. Against a whole decoding the
// resized photographs differ by 43 to 54 dB (PSNR) at 1.5, by 37 to 41 dB at 1.
constexpr double kOversampling = 1.5;

CropRange RangeOf(const v1::ImageTransform& t) {
  return {.least_scale = t.scale(0),
          .most_scale = t.scale(1),
          .least_ratio = t.ratio(0),
          .most_ratio = t.ratio(1)};
}

// One axis of the crop, in pixels of a decoding whose sides are divided by `reduction` and which
// begins at `origin`.
Axis AxisOf(double begin, double length, int64_t low, int64_t pixels, int64_t reduction,
            int64_t origin, int64_t out) {
  const auto r = static_cast<double>(reduction);
  return {.begin = begin / r,
          .end = (begin + length) / r,
          .low = low / reduction,
          .high = (low + pixels + reduction - 1) / reduction,
          .origin = origin,
          .out = out};
}

}  // namespace

SampleReader::SampleReader(const v1::ImageTransform& transform)
    : transform_(transform), range_(RangeOf(transform)) {}

int64_t SampleReader::ReductionFor(const Crop& crop) const {
  const double side = std::min(crop.width, crop.height) / (kOversampling * transform_.size());
  return side >= 8 ? 8 : side >= 4 ? 4 : side >= 2 ? 2 : 1;
}

absl::Status SampleReader::Read(absl::Span<const uint8_t> file, Draws* draws, uint8_t* sample) {
  TY_ASSIGN_OR_RETURN(const ImageSize size, decoder_.ReadHeader(file));
  const bool drawn = draws != nullptr && transform_.crop() == v1::ImageTransform::RANDOM_RESIZED;
  const bool mirrored = draws != nullptr && transform_.flip() && draws->Coin();
  const Crop crop = drawn ? RandomResizedCrop(size, range_, *draws)
                          : CenterCrop(size, transform_.resize(), transform_.size());
  const int64_t channels = transform_.channels();
  TY_ASSIGN_OR_RETURN(
      const int64_t reduction,
      decoder_.Decode({.box = crop.area, .channels = channels, .reduction = ReductionFor(crop)},
                      pixels_));
  Axis x = AxisOf(crop.x, crop.width, crop.area.x, crop.area.width, reduction, pixels_.x,
                  transform_.size());
  x.mirrored = mirrored;
  const Axis y = AxisOf(crop.y, crop.height, crop.area.y, crop.area.height, reduction, pixels_.y,
                        transform_.size());
  resampler_.Resample(
      {.pixels = pixels_.bytes.data(), .width = pixels_.width, .channels = channels}, x, y, sample);
  return absl::OkStatus();
}

}  // namespace trainyard::data
