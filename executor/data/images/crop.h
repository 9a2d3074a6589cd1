#pragma once

// Which part of an image becomes a sample: pure geometry.

#include "executor/data/images/draws.h"
#include "executor/data/images/pixels.h"

namespace trainyard::data {

// Pixels [x, x + width) by [y, y + height) of an image, at fractions of pixels, become the sample;
// pixels outside `area` do not shine into it.
struct Crop {
  double x = 0, y = 0, width = 0, height = 0;
  PixelBox area;
};

// Of the crop before it is resized: its share of the image's area, and width / height.
struct CropRange {
  double least_scale = 0.08, most_scale = 1;
  double least_ratio = 3.0 / 4, most_ratio = 4.0 / 3;
};

// torchvision's RandomResizedCrop: area and log(ratio) uniform, ten tries to fit, then the largest
// centred crop of an allowed ratio.
Crop RandomResizedCrop(const ImageSize& image, const CropRange& range, Draws& draws);

// torchvision's Resize(resize) and CenterCrop(size) in one: the shorter side becomes `resize`, of
// which the centre of `size` pixels a side is taken; size <= resize.
Crop CenterCrop(const ImageSize& image, int64_t resize, int64_t size);

}  // namespace trainyard::data
