#include "tests/reference/image.h"

#include <array>
#include <cmath>

#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class ImageTest : public CpuTest {};

ConvolutionShape Depthwise(int64_t batch, int64_t height, int64_t width, int64_t channels,
                           int64_t kernel, int64_t stride, int64_t pad) {
  return {.batch = batch,
          .height = height,
          .width = width,
          .in = channels,
          .out = channels,
          .kernel_height = kernel,
          .kernel_width = kernel,
          .stride = stride,
          .pad = pad,
          .groups = channels};
}

std::vector<ConvolutionShape> ConvolutionShapes() {
  return {
      {.batch = 1, .height = 1, .width = 1, .in = 1, .out = 1},
      {.batch = 2,
       .height = 9,
       .width = 7,
       .in = 1,
       .out = 17,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1},
      {.batch = 2,
       .height = 12,
       .width = 12,
       .in = 16,
       .out = 32,
       .kernel_height = 5,
       .kernel_width = 5,
       .pad = 2},
      {.batch = 3,
       .height = 11,
       .width = 8,
       .in = 3,
       .out = 5,
       .kernel_height = 3,
       .kernel_width = 2,
       .stride = 2,
       .pad = 1},
      {.batch = 2,
       .height = 8,
       .width = 8,
       .in = 32,
       .out = 65,
       .kernel_height = 1,
       .kernel_width = 1,
       .stride = 2},
      // Winograd's algorithm on the CPU: tiles that stand over the edge, and whole ones.
      {.batch = 11,
       .height = 9,
       .width = 7,
       .in = 16,
       .out = 48,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1},
      {.batch = 4,
       .height = 16,
       .width = 16,
       .in = 32,
       .out = 16,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1},
      // Several passes over the tiles, several slabs of columns, sums that are cut.
      {.batch = 2,
       .height = 33,
       .width = 33,
       .in = 16,
       .out = 400,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1},
      {.batch = 4,
       .height = 16,
       .width = 16,
       .in = 208,
       .out = 16,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1},
      // Sums over more tiles than are taken at once.
      {.batch = 8,
       .height = 28,
       .width = 28,
       .in = 16,
       .out = 32,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1},
      // Gradients by weights from several runs of pixels, from several tiles, at every place of a
      // window.
      {.batch = 3, .height = 21, .width = 22, .in = 40, .out = 24},
      {.batch = 2, .height = 5, .width = 7, .in = 272, .out = 300},
      {.batch = 3,
       .height = 23,
       .width = 21,
       .in = 35,
       .out = 18,
       .kernel_height = 3,
       .kernel_width = 3,
       .stride = 2,
       .pad = 1},
      {.batch = 2,
       .height = 28,
       .width = 28,
       .in = 1,
       .out = 32,
       .kernel_height = 5,
       .kernel_width = 5,
       .pad = 2},
      {.batch = 2,
       .height = 6,
       .width = 5,
       .in = 12,
       .out = 8,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1,
       .groups = 4},
      Depthwise(2, 9, 7, 17, 3, 1, 1),
      Depthwise(2, 14, 14, 96, 3, 2, 1),
      Depthwise(1, 6, 8, 5, 5, 1, 2),
      Depthwise(2, 5, 4, 33, 2, 2, 0),
  };
}

int64_t XSize(const ConvolutionShape& s) { return s.batch * s.height * s.width * s.in; }
int64_t YSize(const ConvolutionShape& s) {
  return s.batch * s.out_height() * s.out_width() * s.out;
}
int64_t WSize(const ConvolutionShape& s) {
  return s.out * s.in / s.groups * s.kernel_height * s.kernel_width;
}

// Winograd's transforms grow the rounding error of a sum.
double ToleranceOf(const ConvolutionShape& s) {
  const bool winograd = s.kernel_height == 3 && s.kernel_width == 3 && s.stride == 1 &&
                        s.in % 16 == 0 && s.out % 16 == 0;
  return winograd ? 1.5e-5 : 5e-6;
}

TEST_P(ImageTest, ConvolutionAgreesWithReference) {
  for (const ConvolutionShape& s : ConvolutionShapes()) {
    for (const bool biased : {true, false}) {
      const Vec x = RandomVec(XSize(s), 1), w = RandomVec(WSize(s), 2),
                bias = biased ? RandomVec(s.out, 3) : Vec();
      const Buffer y = bench_.Floats(YSize(s));
      bench_.Run(ConvolutionForward{bench_.Floats(x), bench_.Floats(w),
                                    biased ? bench_.Floats(bias) : Buffer(), y, s});
      ExpectClose(y, reference::Convolution(x, w, bias, s), ToleranceOf(s), "y");
    }
  }
}

TEST_P(ImageTest, GroupsThatDoNotDivideTheChannelsAreRefused) {
  const Buffer x = bench_.Floats(36), w = bench_.Floats(36), y = bench_.Floats(36);
  const ConvolutionShape s{.batch = 1, .height = 1, .width = 1, .in = 6, .out = 6, .groups = 4};
  EXPECT_EQ(bench_.device()
                .Prepare(ConvolutionForward{.x = x, .w = w, .y = y, .shape = s})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

// It spoils more than its window where tiles are summed at once, but never less.
TEST_P(ImageTest, ANaNReachesAllOfItsWindow) {
  const ConvolutionShape s{.batch = 11,
                           .height = 9,
                           .width = 7,
                           .in = 16,
                           .out = 16,
                           .kernel_height = 3,
                           .kernel_width = 3,
                           .pad = 1};
  const int64_t pixels = s.height * s.width;
  const Vec w = RandomVec(WSize(s), 1);
  // Another pixel in each image, so that six runs see them all.
  for (int64_t first = 0; first < pixels; first += s.batch) {
    Vec x = RandomVec(XSize(s), 2);
    for (int64_t n = 0; n < s.batch; ++n) {
      x[(n * pixels + (first + n) % pixels) * s.in + n] = std::nan("");
    }
    const Buffer y = bench_.Floats(YSize(s));
    bench_.Run(
        ConvolutionForward{.x = bench_.Floats(x), .w = bench_.Floats(w), .y = y, .shape = s});
    const Vec found = Bench::Read(y, YSize(s)),
              expected = reference::Convolution(x, w, Vec(s.out), s);
    for (int64_t i = 0; i < YSize(s); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(found[i])) << "element " << i;
      }
    }
  }
}

TEST_P(ImageTest, ConvolutionGradientByDataAgreesWithReference) {
  for (const ConvolutionShape& s : ConvolutionShapes()) {
    const Vec dy = RandomVec(YSize(s), 1), w = RandomVec(WSize(s), 2);
    const Buffer dx = bench_.Floats(XSize(s));
    bench_.Run(ConvolutionBackwardData{bench_.Floats(dy), bench_.Floats(w), dx, s});
    ExpectClose(dx, reference::ConvolutionBackwardData(dy, w, s), ToleranceOf(s), "dx");
  }
}

TEST_P(ImageTest, ConvolutionGradientByWeightsAgreesWithReference) {
  for (const ConvolutionShape& s : ConvolutionShapes()) {
    for (int flags = 0; flags < 4; ++flags) {
      const bool accumulate = flags & 1, biased = flags & 2;
      const Vec x = RandomVec(XSize(s), 1), dy = RandomVec(YSize(s), 2);
      const Vec old_dw = RandomVec(WSize(s), 3), old_dbias = RandomVec(s.out, 4);
      const Buffer dw = accumulate ? bench_.Floats(old_dw) : bench_.Floats(WSize(s));
      const Buffer dbias = accumulate ? bench_.Floats(old_dbias) : bench_.Floats(s.out);
      bench_.Run(ConvolutionBackwardWeights{.x = bench_.Floats(x),
                                            .dy = bench_.Floats(dy),
                                            .dw = dw,
                                            .dbias = biased ? dbias : Buffer(),
                                            .shape = s,
                                            .accumulate = accumulate});
      const auto g = reference::ConvolutionBackwardWeights(x, dy, s);
      ExpectClose(dw, accumulate ? Plus(g.dw, old_dw) : g.dw, 2 * ToleranceOf(s), "dw");
      if (!biased) continue;
      ExpectClose(dbias, accumulate ? Plus(g.dbias, old_dbias) : g.dbias, 1e-5, "dbias");
    }
  }
}

std::vector<PoolShape> Pools() {
  return {
      {1, 1, 1, 1, 1, 1},    {2, 28, 28, 32, 2, 2},   {3, 7, 9, 17, 2, 2},
      {2, 8, 11, 3, 3, 3},   {1, 31, 17, 5, 15, 15},  {2, 28, 28, 64, 3, 2, 1},
      {1, 1, 1, 3, 3, 2, 1}, {3, 11, 6, 17, 3, 2, 1}, {2, 9, 10, 5, 4, 1, 2},
      {1, 7, 8, 33, 2, 3},
  };
}

TEST_P(ImageTest, MaxPoolAgreesWithReferenceBothWays) {
  for (const PoolShape& s : Pools()) {
    Vec x = RandomVec(s.batch * s.height * s.width * s.channels, 1);
    // Ties: the first of equals is taken.
    for (double& v : x) v = std::round(v * 2);
    const auto forward = reference::MaxPool(x, s);
    const int64_t n = static_cast<int64_t>(forward.y.size());
    const Buffer y = bench_.Floats(n), index = bench_.Raw(DType::kU8, n),
                 dx = bench_.Floats(static_cast<int64_t>(x.size()));
    bench_.Run(MaxPoolForward{bench_.Floats(x), y, index, s});
    ExpectClose(y, forward.y, 0, "y");
    EXPECT_EQ(std::vector<uint8_t>(index.As<uint8_t>(), index.As<uint8_t>() + n), forward.index);
    const Vec dy = RandomVec(n, 2);
    bench_.Run(MaxPoolBackward{bench_.Floats(dy), index, dx, s});
    ExpectClose(dx, reference::MaxPoolBackward(dy, forward.index, s), 1e-6, "dx");
  }
}

TEST_P(ImageTest, MeanPoolAgreesWithReferenceBothWays) {
  for (const auto& [batch, pixels, channels] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {3, 49, 17}, {5, 16, 512}, {2, 784, 65}}) {
    const Vec x = RandomVec(batch * pixels * channels, 1), dy = RandomVec(batch * channels, 2);
    const Buffer y = bench_.Floats(batch * channels), dx = bench_.Floats(batch * pixels * channels);
    bench_.Run(MeanPoolForward{bench_.Floats(x), y, batch, pixels, channels});
    ExpectClose(y, reference::MeanPool(x, batch, pixels, channels), 2e-6, "y");
    bench_.Run(MeanPoolBackward{bench_.Floats(dy), dx, batch, pixels, channels});
    ExpectClose(dx, reference::MeanPoolBackward(dy, batch, pixels, channels), 1e-6, "dx");
  }
}

// What images of `channels` are normalised by.
NormalizeImages Normalization(int64_t pixels, int64_t channels) {
  return {.pixels = pixels,
          .channels = channels,
          .mean = {0.485, 0, -1.5},
          .std = {0.229, 1, 1 / 255.0}};
}

TEST_P(ImageTest, NormalisationAgreesWithReference) {
  for (const int64_t channels : {1, 2, 3}) {
    for (const int64_t pixels : {1, 2, 5, 16, 17, 341, 4099, 30011}) {
      NormalizeImages op = Normalization(pixels, channels);
      const int64_t n = pixels * channels;
      op.x = bench_.Raw(DType::kU8, n), op.y = bench_.Floats(n);
      Vec x(n);
      for (int64_t i = 0; i < n; ++i) {
        op.x.As<uint8_t>()[i] = static_cast<uint8_t>(i * 2654435761u >> 21);
        x[i] = op.x.As<uint8_t>()[i];
      }
      bench_.Run(op);
      const Vec mean(op.mean.begin(), op.mean.begin() + channels),
          std(op.std.begin(), op.std.begin() + channels);
      ExpectClose(op.y, reference::NormalizeImages(x, mean, std), 1e-7,
                  "y of " + std::to_string(pixels) + "x" + std::to_string(channels));
    }
  }
}

// The value of a byte is the one fp32 that the formula gives in double precision: runs keep their
// bits from device to device, and from when the loader normalised.
TEST_P(ImageTest, NormalisationOfEveryByteHasTheBitsOfTheFormula) {
  constexpr int64_t kPixels = 512;
  for (const double mean : {0.0, 0.2860, 0.485}) {
    for (const double std : {1.0, 0.3530, 0.229}) {
      for (const int64_t channels : {1, 3}) {
        NormalizeImages op{.pixels = kPixels, .channels = channels};
        for (int64_t c = 0; c < channels; ++c) {
          op.mean[c] = mean + 0.03 * static_cast<double>(c);
          op.std[c] = std - 0.005 * static_cast<double>(c);
        }
        op.x = bench_.Raw(DType::kU8, kPixels * channels);
        op.y = bench_.Floats(kPixels * channels);
        // Every byte in every channel, in an order that differs between them.
        for (int64_t i = 0; i < kPixels * channels; ++i) {
          op.x.As<uint8_t>()[i] = static_cast<uint8_t>(i / channels + 85 * (i % channels));
        }
        bench_.Run(op);
        for (int64_t i = 0; i < kPixels * channels; ++i) {
          const int v = op.x.As<uint8_t>()[i];
          const double m = op.mean[i % channels], s = op.std[i % channels];
          ASSERT_EQ(op.y.As<float>()[i], static_cast<float>((v / 255.0 - m) / s))
              << "byte " << v << " of channel " << i % channels;
        }
      }
    }
  }
}

TEST_P(ImageTest, CropsAgreeWithReference) {
  struct Shape {
    int64_t images, height, width;
  };
  for (const int64_t channels : {1, 2, 3}) {
    for (const auto& [images, height, width] :
         {Shape{1, 1, 1}, Shape{18, 2, 3}, Shape{5, 28, 28}, Shape{37, 9, 13}, Shape{2, 3, 1500}}) {
      NormalizeImages op = Normalization(images * height * width, channels);
      const int64_t n = op.pixels * channels;
      op.x = bench_.Raw(DType::kU8, n), op.y = bench_.Floats(n);
      op.height = height, op.width = width;
      Vec x(n);
      for (int64_t i = 0; i < n; ++i) {
        op.x.As<uint8_t>()[i] = static_cast<uint8_t>(i * 2654435761u >> 21);
        x[i] = op.x.As<uint8_t>()[i];
      }
      std::vector<int32_t> places;
      for (int32_t i = 0; i < images; ++i) {
        for (const int32_t number : {i % 5 - 2, i / 2 % 5 - 2, i % 2}) places.push_back(number);
      }
      if (images > 4) {  // past every edge
        places[0] = static_cast<int32_t>(height), places[4] = static_cast<int32_t>(-width);
        places[6] = INT32_MAX, places[10] = INT32_MIN;
      }
      op.places = bench_.Ints(places);
      bench_.Run(op);
      const Vec mean(op.mean.begin(), op.mean.begin() + channels),
          std(op.std.begin(), op.std.begin() + channels);
      const Vec crops = reference::CropImages(x, places, height, width, channels);
      ExpectClose(op.y, reference::NormalizeImages(crops, mean, std), 1e-7,
                  "y of " + std::to_string(height) + "x" + std::to_string(width));
    }
  }
}

TEST_P(ImageTest, NormalisationRefusesWhatItCannotHold) {
  const auto code = [&](int64_t pixels, int64_t channels, DType from, DType to) {
    NormalizeImages op = Normalization(pixels, channels);
    op.x = bench_.Raw(from, 64), op.y = bench_.Raw(to, 64);
    return bench_.device().Prepare(op).status().code();
  };
  using absl::StatusCode;
  EXPECT_EQ(code(4, 3, DType::kU8, DType::kF32), StatusCode::kOk);
  EXPECT_EQ(code(4, 4, DType::kU8, DType::kF32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(4, 0, DType::kU8, DType::kF32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 3, DType::kU8, DType::kF32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(4, 3, DType::kF32, DType::kF32), StatusCode::kUnimplemented);
  EXPECT_EQ(code(4, 3, DType::kU8, DType::kI32), StatusCode::kUnimplemented);
  for (const auto& [height, width] : {std::pair{0, 4}, {4, 0}, {3, 2}, {5, 1}}) {
    NormalizeImages op = Normalization(4, 3);
    op.x = bench_.Raw(DType::kU8, 64), op.y = bench_.Floats(64);
    op.places = bench_.Ints({0, 0, 0});
    op.height = height, op.width = width;
    EXPECT_EQ(bench_.device().Prepare(op).status().code(), StatusCode::kInvalidArgument);
  }
}

TRAINYARD_CPU_SUITE(ImageTest);

}  // namespace
}  // namespace trainyard::kernels
