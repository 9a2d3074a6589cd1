#include "executor/data/images/resample.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/reference/resample.h"
#include "tests/unit/data/images/encoders.h"
#include "tests/unit/data/images/pillow_files.h"

namespace trainyard::data {
namespace {

Axis WholeAxis(int64_t length, int64_t out) {
  return {.end = static_cast<double>(length), .high = length, .out = out};
}

Bytes Resampled(const Bytes& pixels, int64_t width, int64_t channels, const Axis& x, const Axis& y,
                const ResampleLoops& loops = *SupportedLoops()[0]) {
  Bytes out(static_cast<size_t>(x.out * y.out * channels), 77);
  Resampler resampler(loops);
  resampler.Resample({.pixels = pixels.data(), .width = width, .channels = channels}, x, y,
                     out.data());
  return out;
}

TEST(Resample, AgreesWithPillow) {
  const auto smaller = Resampled(kPillowPicture, 8, 3, WholeAxis(8, 3), WholeAxis(6, 4));
  for (size_t i = 0; i < smaller.size(); ++i) EXPECT_NEAR(smaller[i], kPillowSmaller[i], 1);
  const Axis x = {.begin = 1.5, .end = 6.75, .high = 8, .out = 5};
  const Axis y = {.begin = 0.25, .end = 5.5, .high = 6, .out = 5};
  const auto box = Resampled(kPillowPicture, 8, 3, x, y);
  for (size_t i = 0; i < box.size(); ++i) EXPECT_NEAR(box[i], kPillowBox[i], 1);
}

struct Case {
  int64_t height, width, out_height, out_width;
};

TEST(Resample, AgreesWithTheReferenceOnEveryInstructionSetToTheSameBits) {
  std::mt19937 random(3);
  for (const Case& c : {Case{1, 1, 1, 1},
                        {1, 1, 5, 7},
                        {7, 5, 1, 1},
                        {64, 48, 100, 90},
                        {120, 81, 17, 90},
                        {150, 101, 32, 31},
                        {2, 1000, 3, 9}}) {
    for (const int64_t channels : {1, 3}) {
      Bytes pixels(static_cast<size_t>(c.height * c.width * channels));
      for (uint8_t& p : pixels) p = static_cast<uint8_t>(random());
      Axis x = WholeAxis(c.width, c.out_width), y = WholeAxis(c.height, c.out_height);
      for (int i = 0; i < 3; ++i) {
        const auto out = Resampled(pixels, c.width, channels, x, y);
        const auto expected =
            reference::Resample(pixels, c.width, channels, {x.begin, x.end, x.low, x.high, x.out},
                                {y.begin, y.end, y.low, y.high, y.out});
        for (size_t j = 0; j < out.size(); ++j) ASSERT_NEAR(out[j], expected[j], 0.5 + 2e-4) << j;
        for (const ResampleLoops* loops : SupportedLoops()) {
          ASSERT_EQ(Resampled(pixels, c.width, channels, x, y, *loops), out);
        }
        // Once more with a part of it, at fractions of pixels.
        const auto part = [&](int64_t length, Axis& axis) {
          axis.low = static_cast<int64_t>(random() % length);
          axis.high = axis.low + 1 + static_cast<int64_t>(random() % (length - axis.low));
          axis.begin = static_cast<double>(axis.low) + 0.3;
          axis.end = static_cast<double>(axis.high) - 0.1;
        };
        part(c.width, x);
        part(c.height, y);
      }
    }
  }
}

TEST(Resample, OfTheSameSizeChangesNothing) {
  const ImageSize size = {.height = 13, .width = 29};
  const Bytes pixels = Picture(size, 3);
  const auto out = Resampled(pixels, 29, 3, WholeAxis(29, 29), WholeAxis(13, 13));
  EXPECT_EQ(out, pixels);
}

TEST(Resample, MirrorsOneAxis) {
  const ImageSize size = {.height = 40, .width = 57};
  const Bytes pixels = Picture(size, 3);
  Axis x = WholeAxis(57, 20);
  const Axis y = WholeAxis(40, 20);
  const auto plain = Resampled(pixels, 57, 3, x, y);
  x.mirrored = true;
  const auto mirrored = Resampled(pixels, 57, 3, x, y);
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 20 * 3; ++j) {
      ASSERT_EQ(mirrored[i * 60 + j], plain[i * 60 + (19 - j / 3) * 3 + j % 3]);
    }
  }
}

TEST(Resample, SeesNothingOutsideWhatExists) {
  // Bright on the left of the crop, dark inside.
  Bytes pixels(10 * 10, 0);
  for (int64_t y = 0; y < 10; ++y) pixels[y * 10 + 2] = 255;
  Axis x = {.begin = 3, .end = 9, .low = 3, .high = 9, .out = 2};
  const Axis y = WholeAxis(10, 2);
  for (const int v : Resampled(pixels, 10, 1, x, y)) EXPECT_EQ(v, 0);
  x.low = 0;
  EXPECT_GT(Resampled(pixels, 10, 1, x, y)[0], 0);
}

TEST(Resample, TakesPixelsThatBeginElsewhere) {
  const ImageSize size = {.height = 20, .width = 30};
  const Bytes pixels = Picture(size, 3);
  const Axis x = {.begin = 10, .end = 25, .low = 10, .high = 25, .out = 8};
  const Axis y = {.begin = 5, .end = 15, .low = 5, .high = 15, .out = 8};
  const auto whole = Resampled(pixels, 30, 3, x, y);
  Axis cut_x = x, cut_y = y;
  cut_x.origin = 10;
  cut_y.origin = 5;
  const Bytes cut(pixels.begin() + (5 * 30 + 10) * 3, pixels.end());
  EXPECT_EQ(Resampled(cut, 30, 3, cut_x, cut_y), whole);
}

TEST(Resample, RoundsToTheNearestByteAndHalvesUp) {
  for (const int64_t channels : {1, 3}) {
    for (const ResampleLoops* loops : SupportedLoops()) {
      // Two pixels as `out`, by weights that fp32 holds: 1/2, or 1, 3/4, 1/4 and 0.
      const auto made = [&](uint8_t left, uint8_t right, int64_t out) {
        Bytes pixels(channels, left), first;
        pixels.insert(pixels.end(), channels, right);
        const Bytes all =
            Resampled(pixels, 2, channels, WholeAxis(2, out), WholeAxis(1, 1), *loops);
        for (size_t i = 0; i < all.size(); i += channels) first.push_back(all[i]);
        for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], first[i / channels]);
        return first;
      };
      EXPECT_EQ(made(7, 8, 1), Bytes{8});
      EXPECT_EQ(made(8, 9, 1), Bytes{9});
      EXPECT_EQ(made(0, 255, 1), Bytes{128});
      EXPECT_EQ(made(255, 255, 1), Bytes{255});
      EXPECT_EQ(made(0, 255, 4), (Bytes{0, 64, 191, 255}));
    }
  }
}

}  // namespace
}  // namespace trainyard::data
