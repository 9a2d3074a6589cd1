#include "executor/data/images/crop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace trainyard::data {
namespace {

TEST(Draws, AreAFunctionOfSeedEpochAndSample) {
  const auto first = [](uint64_t seed, int64_t epoch, int64_t sample) {
    Draws draws(seed, epoch, sample);
    std::vector<double> values;
    for (int i = 0; i < 9; ++i) values.push_back(draws.Uniform());
    return values;
  };
  EXPECT_EQ(first(1, 2, 3), first(1, 2, 3));
  EXPECT_NE(first(1, 2, 3), first(2, 2, 3));
  EXPECT_NE(first(1, 2, 3), first(1, 3, 3));
  EXPECT_NE(first(1, 2, 3), first(1, 2, 4));
  EXPECT_NE(first(1, 2, 3), first(1, 2, 3 + (int64_t{1} << 32)));
  EXPECT_NE(first(1, 2, 3)[0], first(1, 2, 3)[4]);
}

TEST(Draws, AreUniform) {
  std::vector<int64_t> below(10), tenths(10);
  int64_t heads = 0;
  for (int64_t sample = 0; sample < 10000; ++sample) {
    Draws draws(7, 0, sample);
    ++below[draws.Below(10)];
    ++tenths[static_cast<int64_t>(draws.Uniform() * 10)];
    heads += draws.Coin();
  }
  for (const int64_t n : below) EXPECT_NEAR(n, 1000, 120);
  for (const int64_t n : tenths) EXPECT_NEAR(n, 1000, 120);
  EXPECT_NEAR(heads, 5000, 200);
}

TEST(RandomResizedCrop, HasAreasAndRatiosOfTheRangeInsideTheImage) {
  const ImageSize image = {.height = 375, .width = 500};
  const CropRange range;
  double areas = 0;
  int64_t whole = 0;
  for (int64_t sample = 0; sample < 4000; ++sample) {
    Draws draws(1, 0, sample);
    const Crop crop = RandomResizedCrop(image, range, draws);
    const PixelBox& box = crop.area;
    ASSERT_GE(box.x, 0);
    ASSERT_GE(box.y, 0);
    ASSERT_LE(box.x + box.width, 500);
    ASSERT_LE(box.y + box.height, 375);
    EXPECT_EQ(crop.x, box.x);
    EXPECT_EQ(crop.height, box.height);
    const double area = crop.width * crop.height / (375 * 500);
    const double ratio = crop.width / crop.height;
    EXPECT_GT(area, 0.078);
    EXPECT_GT(ratio, 0.74);
    EXPECT_LT(ratio, 1.35);
    areas += area;
    whole += box.width == 500 && box.height == 375;
  }
  // torchvision's algorithm has this mean: large ones that do not fit are drawn again.
  EXPECT_NEAR(areas / 4000, 0.433, 0.015);
  EXPECT_LT(whole, 40);
}

TEST(RandomResizedCrop, IsAsOftenWideAsTall) {
  const CropRange range = {
      .least_scale = 0.04, .most_scale = 0.04, .least_ratio = 0.25, .most_ratio = 4};
  double logs = 0;
  for (int64_t sample = 0; sample < 2000; ++sample) {
    Draws draws(1, 0, sample);
    const Crop crop = RandomResizedCrop({.height = 1000, .width = 1000}, range, draws);
    logs += std::log(crop.width / crop.height);
  }
  EXPECT_NEAR(logs / 2000, 0, 0.08);  // uniform in [-1.39, 1.39]
}

TEST(RandomResizedCrop, OfWhatNeverFitsIsTheLargestCentredOne) {
  const CropRange tall = {.least_scale = 1, .most_scale = 1, .least_ratio = 0.5, .most_ratio = 0.5};
  Draws draws(1, 0, 0);
  const Crop crop = RandomResizedCrop({.height = 100, .width = 301}, tall, draws);
  EXPECT_EQ(crop.area.height, 100);
  EXPECT_EQ(crop.area.width, 50);
  EXPECT_EQ(crop.area.x, 125);
  const CropRange wide = {.least_scale = 1, .most_scale = 1, .least_ratio = 2, .most_ratio = 2};
  const Crop other = RandomResizedCrop({.height = 300, .width = 100}, wide, draws);
  EXPECT_EQ(other.area.width, 100);
  EXPECT_EQ(other.area.height, 50);
  EXPECT_EQ(other.area.y, 125);
}

TEST(RandomResizedCrop, OfTheSmallestImagesHasAPixel) {
  for (const ImageSize image : {ImageSize{1, 1}, {1, 16384}, {16384, 1}, {2, 3}}) {
    for (int64_t sample = 0; sample < 50; ++sample) {
      Draws draws(3, 1, sample);
      const PixelBox box = RandomResizedCrop(image, {}, draws).area;
      ASSERT_GE(box.width, 1);
      ASSERT_GE(box.height, 1);
      ASSERT_LE(box.x + box.width, image.width);
      ASSERT_LE(box.y + box.height, image.height);
    }
  }
}

TEST(CenterCrop, IsTorchvisionsResizeAndCenterCrop) {
  // 500x375 becomes 341x256, of which 224x224 are taken at 58, 16 (58.5 rounds to even).
  const Crop crop = CenterCrop({.height = 375, .width = 500}, 256, 224);
  EXPECT_DOUBLE_EQ(crop.x, 58 * 500.0 / 341);
  EXPECT_DOUBLE_EQ(crop.width, 224 * 500.0 / 341);
  EXPECT_DOUBLE_EQ(crop.y, 16 * 375.0 / 256);
  EXPECT_DOUBLE_EQ(crop.height, 224 * 375.0 / 256);
  // The filter reaches a little beyond the crop.
  EXPECT_EQ(crop.area.x, 83);
  EXPECT_EQ(crop.area.y, 21);
  EXPECT_EQ(crop.area.x + crop.area.width, 415);
}

TEST(CenterCrop, OfASmallImageEnlargesIt) {
  const Crop crop = CenterCrop({.height = 10, .width = 10}, 20, 20);
  EXPECT_EQ(crop.x, 0);
  EXPECT_EQ(crop.width, 10);
  EXPECT_EQ(crop.area.width, 10);
  const Crop thin = CenterCrop({.height = 1, .width = 16384}, 256, 224);
  EXPECT_GE(thin.area.width, 1);
  EXPECT_EQ(thin.area.height, 1);
}

}  // namespace
}  // namespace trainyard::data
