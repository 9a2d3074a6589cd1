#include "executor/data/images/crop.h"

#include <algorithm>
#include <cmath>

namespace trainyard::data {

namespace {

constexpr int kTries = 10;

Crop Whole(const PixelBox& box) {
  return {.x = static_cast<double>(box.x),
          .y = static_cast<double>(box.y),
          .width = static_cast<double>(box.width),
          .height = static_cast<double>(box.height),
          .area = box};
}

// Half to even, as Python's round.
int64_t Round(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

// One axis of CenterCrop. `resized`: the length of the axis after resizing.
struct Span {
  double begin = 0, length = 0;
  int64_t first = 0, end = 0;  // pixels under the filter
};

Span CenterSpan(int64_t length, int64_t resized, int64_t size) {
  const double scale = static_cast<double>(length) / static_cast<double>(resized);
  Span span;
  span.begin = static_cast<double>(Round(static_cast<double>(resized - size) / 2)) * scale;
  span.length = static_cast<double>(size) * scale;
  const double support = std::max(scale, 1.0);
  const auto first = static_cast<int64_t>(std::floor(span.begin - support));
  const auto end = static_cast<int64_t>(std::ceil(span.begin + span.length + support));
  span.first = std::max<int64_t>(0, first);
  span.end = std::min(length, end);
  return span;
}

}  // namespace

Crop RandomResizedCrop(const ImageSize& image, const CropRange& range, Draws& draws) {
  const auto height = static_cast<double>(image.height);
  const auto width = static_cast<double>(image.width);
  const double low = std::log(range.least_ratio), high = std::log(range.most_ratio);
  for (int i = 0; i < kTries; ++i) {
    const double area = height * width * draws.Uniform(range.least_scale, range.most_scale);
    const double ratio = std::exp(draws.Uniform(low, high));
    const int64_t w = Round(std::sqrt(area * ratio));
    const int64_t h = Round(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > image.width || h > image.height) continue;
    const int64_t y = draws.Below(image.height - h + 1);
    const int64_t x = draws.Below(image.width - w + 1);
    return Whole({.x = x, .y = y, .width = w, .height = h});
  }
  int64_t w = image.width, h = image.height;
  if (width / height < range.least_ratio) {
    h = std::clamp<int64_t>(Round(width / range.least_ratio), 1, image.height);
  } else if (width / height > range.most_ratio) {
    w = std::clamp<int64_t>(Round(height * range.most_ratio), 1, image.width);
  }
  return Whole({.x = (image.width - w) / 2, .y = (image.height - h) / 2, .width = w, .height = h});
}

Crop CenterCrop(const ImageSize& image, int64_t resize, int64_t size) {
  int64_t width = resize, height = resize;
  if (image.width < image.height) {
    height = resize * image.height / image.width;
  } else {
    width = resize * image.width / image.height;
  }
  const Span x = CenterSpan(image.width, width, size);
  const Span y = CenterSpan(image.height, height, size);
  return {
      .x = x.begin,
      .y = y.begin,
      .width = x.length,
      .height = y.length,
      .area = {.x = x.first, .y = y.first, .width = x.end - x.first, .height = y.end - y.first}};
}

}  // namespace trainyard::data
