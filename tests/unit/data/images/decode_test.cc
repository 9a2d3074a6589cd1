#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
// After stdio.h, which it needs.
#include <jpeglib.h>

#include <cmath>
#include <random>

#include "executor/data/images/decoder.h"
#include "tests/unit/data/images/encoders.h"
#include "tests/unit/data/images/pillow_files.h"

namespace trainyard::data {
namespace {

using testing::HasSubstr;

// A straightforward decoding of the whole file; libjpeg ends the program on an error.
Bytes WholeJpeg(const Bytes& file, int64_t channels, int64_t reduction, ImageSize& size) {
  jpeg_decompress_struct c;
  jpeg_error_mgr errors;
  c.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&c);
  jpeg_mem_src(&c, file.data(), file.size());
  jpeg_read_header(&c, TRUE);
  c.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  c.scale_denom = static_cast<unsigned>(reduction);
  jpeg_start_decompress(&c);
  size = {.height = c.output_height, .width = c.output_width};
  Bytes pixels(static_cast<size_t>(size.height * size.width * channels));
  while (c.output_scanline < c.output_height) {
    JSAMPROW row = pixels.data() + c.output_scanline * size.width * channels;
    jpeg_read_scanlines(&c, &row, 1);
  }
  jpeg_destroy_decompress(&c);
  return pixels;
}

PixelBox Whole(const ImageSize& size) { return {.width = size.width, .height = size.height}; }

// All of `file`, exactly as large as it says; fails the test when it cannot be read.
Bytes DecodeAll(const Bytes& file, int64_t channels) {
  ImageDecoder decoder;
  const auto size = decoder.ReadHeader(file);
  EXPECT_TRUE(size.ok()) << size.status();
  if (!size.ok()) return {};
  Pixels pixels;
  const auto reduction = decoder.Decode({.box = Whole(*size), .channels = channels}, pixels);
  EXPECT_TRUE(reduction.ok()) << reduction.status();
  EXPECT_EQ(pixels.width, size->width);
  EXPECT_EQ(pixels.height, size->height);
  return Bytes(pixels.bytes.begin(),
               pixels.bytes.begin() + pixels.width * pixels.height * channels);
}

absl::Status TryAll(const Bytes& file) {
  ImageDecoder decoder;
  const auto size = decoder.ReadHeader(file);
  if (!size.ok()) return size.status();
  Pixels pixels;
  return decoder.Decode({.box = Whole(*size)}, pixels).status();
}

struct JpegCase {
  const char* name;
  int64_t channels;
  JpegOptions options;
};

const JpegCase kJpegCases[] = {
    {"420", 3, {}},
    {"422", 3, {.v_sampling = 1}},
    {"440", 3, {.h_sampling = 1}},
    {"444", 3, {.h_sampling = 1, .v_sampling = 1}},
    {"progressive", 3, {.progressive = true}},
    {"restarts", 3, {.restarts = true}},
    {"grey", 1, {}},
};

TEST(Jpeg, CutDecodingsHaveThePixelsOfTheWhole) {
  std::mt19937 random(1);
  const ImageSize size = {.height = 83, .width = 117};
  ImageDecoder decoder;
  Pixels cut;
  for (const JpegCase& c : kJpegCases) {
    const Bytes file = JpegFile(size, c.channels, Picture(size, c.channels), c.options);
    for (const int64_t reduction : {1, 2, 4, 8}) {
      for (const int64_t channels : {1, 3}) {
        ImageSize reduced;
        const Bytes whole = WholeJpeg(file, channels, reduction, reduced);
        for (int i = 0; i < 40; ++i) {
          const auto x = static_cast<int64_t>(random() % 117),
                     y = static_cast<int64_t>(random() % 83);
          const PixelBox box = {.x = x,
                                .y = y,
                                .width = 1 + static_cast<int64_t>(random() % (117 - x)),
                                .height = 1 + static_cast<int64_t>(random() % (83 - y))};
          ASSERT_TRUE(decoder.ReadHeader(file).ok());
          const auto used =
              decoder.Decode({.box = box, .channels = channels, .reduction = reduction}, cut);
          ASSERT_TRUE(used.ok()) << c.name << " " << used.status();
          ASSERT_EQ(*used, reduction);
          for (int64_t row = y / reduction; row * reduction < y + box.height; ++row) {
            for (int64_t col = x / reduction; col * reduction < x + box.width; ++col) {
              for (int64_t ch = 0; ch < channels; ++ch) {
                const int64_t at = ((row - cut.y) * cut.width + col - cut.x) * channels + ch;
                ASSERT_EQ(cut.bytes[at], whole[(row * reduced.width + col) * channels + ch])
                    << c.name << " /" << reduction << " " << channels << " channels, pixel " << col
                    << "," << row << " of box " << x << "," << y << " " << box.width << "x"
                    << box.height;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Jpeg, HasThePixelsThatPillowGives) {
  EXPECT_EQ(DecodeAll(kPillowJpeg, 3), kPillowJpegRgb);
  const Bytes luma = DecodeAll(kPillowJpeg, 1);
  ASSERT_EQ(luma.size() * 3, kPillowJpegRgb.size());
  for (size_t i = 0; i < luma.size(); ++i) {
    const double y = 0.299 * kPillowJpegRgb[3 * i] + 0.587 * kPillowJpegRgb[3 * i + 1] +
                     0.114 * kPillowJpegRgb[3 * i + 2];
    EXPECT_NEAR(luma[i], y, 2);
  }
}

TEST(Jpeg, OfInksBecomesRgbAsWithPillow) {
  const Bytes rgb = DecodeAll(kPillowInks, 3);
  ASSERT_EQ(rgb.size(), kPillowInksRgb.size());
  for (size_t i = 0; i < rgb.size(); ++i) EXPECT_NEAR(rgb[i], kPillowInksRgb[i], 1) << i;
}

TEST(Jpeg, OfInksWithoutAdobesMarkIsNotInverted) {
  const ImageSize size = {.height = 8, .width = 8};
  const Bytes zero(8 * 8 * 4, 0);
  EXPECT_NEAR(DecodeAll(JpegFile(size, 4, zero, {.inks = true, .adobe = false}), 3)[0], 255, 2);
  EXPECT_NEAR(DecodeAll(JpegFile(size, 4, zero, {.inks = true}), 3)[0], 0, 2);
  EXPECT_NEAR(DecodeAll(JpegFile(size, 4, zero, {.inks = true}), 1)[0], 0, 2);
}

TEST(Jpeg, ThatEndsTooEarlyIsRefusedWhereverItEnds) {
  const ImageSize size = {.height = 40, .width = 50};
  for (const bool progressive : {false, true}) {
    const Bytes file = JpegFile(size, 3, Picture(size, 3), {.progressive = progressive});
    for (size_t bytes = 0; bytes + 2 < file.size(); bytes += 7) {
      const absl::Status status = TryAll(Bytes(file.begin(), file.begin() + bytes));
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes;
    }
  }
  const Bytes file = JpegFile(size, 3, Picture(size, 3));
  EXPECT_THAT(std::string(TryAll(Bytes(file.begin(), file.end() - 100)).message()),
              HasSubstr("not a whole JPEG: Premature end of JPEG file"));
}

TEST(Jpeg, IsReadAsFarAsTheBoxNeeds) {
  const ImageSize size = {.height = 400, .width = 50};
  Bytes file = JpegFile(size, 3, Picture(size, 3));
  file.resize(file.size() / 2);
  ImageDecoder decoder;
  Pixels pixels;
  ASSERT_TRUE(decoder.ReadHeader(file).ok());
  EXPECT_TRUE(decoder.Decode({.box = {.width = 50, .height = 100}}, pixels).ok());
  ASSERT_TRUE(decoder.ReadHeader(file).ok());
  EXPECT_FALSE(decoder.Decode({.box = {.width = 50, .height = 390}}, pixels).ok());
}

// The frame header of a JPEG: where height and width are, two bytes each.
size_t FrameSize(const Bytes& file) {
  for (size_t i = 2; i + 9 < file.size(); ++i) {
    if (file[i] == 0xff && (file[i + 1] == 0xc0 || file[i + 1] == 0xc2)) return i + 5;
  }
  return 0;
}

TEST(Jpeg, ThatDeclaresMoreThanItCanHoldIsRefusedBeforeMemoryIsTaken) {
  const ImageSize size = {.height = 16, .width = 16};
  Bytes file = JpegFile(size, 3, Picture(size, 3));
  const size_t at = FrameSize(file);
  ASSERT_NE(at, 0u);
  const auto declare = [&](int height, int width) {
    file[at] = static_cast<uint8_t>(height >> 8);
    file[at + 1] = static_cast<uint8_t>(height);
    file[at + 2] = static_cast<uint8_t>(width >> 8);
    file[at + 3] = static_cast<uint8_t>(width);
    return std::string(TryAll(file).message());
  };
  EXPECT_THAT(declare(8000, 8000), HasSubstr("declares 8000x8000 pixels, more than"));
  EXPECT_THAT(declare(9000, 9000),
              HasSubstr("declares 9000x9000 pixels, expected at most 16384 a side and 67108864"));
  EXPECT_THAT(declare(1, 16385), HasSubstr("declares 16385x1 pixels, expected at most 16384"));
  EXPECT_FALSE(declare(0, 16).empty());
  EXPECT_THAT(declare(64, 64), HasSubstr("not a whole JPEG"));
}

TEST(Jpeg, OfTooManyScansIsRefused) {
  const ImageSize size = {.height = 16, .width = 16};
  EXPECT_TRUE(TryAll(JpegFile(size, 1, Picture(size, 1), {.scans = 90})).ok());
  EXPECT_THAT(std::string(TryAll(JpegFile(size, 1, Picture(size, 1), {.scans = 127})).message()),
              HasSubstr("not a whole JPEG: more than 100 scans"));
}

TEST(Png, OfEveryKindHasThePixelsThatWereWritten) {
  const ImageSize size = {.height = 9, .width = 16};
  for (const bool interlaced : {false, true}) {
    for (const int depth : {1, 2, 4, 8, 16}) {
      for (const int type : {0, 2, 3, 4, 6}) {
        if ((type != 0 && type != 3 && depth < 8) || (type == 3 && depth == 16)) continue;
        const int values = type == 2 ? 3 : type == 4 ? 2 : type == 6 ? 4 : 1;
        Bytes rows(static_cast<size_t>(9 * 16 * values * depth / 8));
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint8_t>(i * 37);
        const Bytes file =
            PngFile(size, rows, {.colour_type = type, .depth = depth, .interlaced = interlaced});
        const Bytes rgb = DecodeAll(file, 3);
        // The i-th value as written, scaled to 8 bits.
        const auto value = [&](int64_t i) -> int {
          if (depth == 16)
            return static_cast<int>(std::lround((rows[2 * i] * 256 + rows[2 * i + 1]) / 257.0));
          const int per_byte = 8 / depth;
          const int shift = 8 - depth * (1 + static_cast<int>(i % per_byte));
          const int raw = rows[i / per_byte] >> shift & ((1 << depth) - 1);
          return type == 3 ? raw : raw * 255 / ((1 << depth) - 1);
        };
        for (int64_t p = 0; p < 9 * 16; ++p) {
          for (int c = 0; c < 3; ++c) {
            int expected = value(p * values + (values > 2 ? c : 0));
            if (type == 3) expected = c == 0 ? expected : c == 1 ? 255 - expected : expected / 2;
            ASSERT_EQ(rgb[3 * p + c], expected) << "type " << type << " depth " << depth;
          }
        }
      }
    }
  }
}

TEST(Png, BecomesLumaAsPillowsDoes) {
  const ImageSize size = {.height = 1, .width = 3};
  const Bytes rows = {255, 0, 0, 0, 255, 0, 10, 20, 200};
  const Bytes luma = DecodeAll(PngFile(size, rows), 1);
  EXPECT_NEAR(luma[0], 76, 1);
  EXPECT_NEAR(luma[1], 150, 1);
  EXPECT_NEAR(luma[2], 38, 1);
  EXPECT_EQ(DecodeAll(PngFile(size, {7, 8, 9}, {.colour_type = 0}), 1), (Bytes{7, 8, 9}));
}

TEST(Png, IsReadAsFarAsTheBoxNeeds) {
  const ImageSize size = {.height = 50, .width = 40};
  const Bytes rows = Picture(size, 3);
  ImageDecoder decoder;
  Pixels pixels;
  for (const bool interlaced : {false, true}) {
    const Bytes file = PngFile(size, rows, {.interlaced = interlaced});
    ASSERT_TRUE(decoder.ReadHeader(file).ok());
    const PixelBox box = {.x = 3, .y = 20, .width = 5, .height = 7};
    ASSERT_TRUE(decoder.Decode({.box = box}, pixels).ok());
    for (int64_t y = 20; y < 27; ++y) {
      for (int64_t x = 3; x < 8; ++x) {
        EXPECT_EQ(pixels.bytes[((y - pixels.y) * pixels.width + x - pixels.x) * 3],
                  rows[(y * 40 + x) * 3]);
      }
    }
  }
}

TEST(Png, ThatEndsTooEarlyOrIsAlteredIsRefused) {
  const ImageSize size = {.height = 40, .width = 50};
  const Bytes file = PngFile(size, Picture(size, 3));
  for (size_t bytes = 0; bytes + 40 < file.size(); bytes += 7) {
    const absl::Status status = TryAll(Bytes(file.begin(), file.begin() + bytes));
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  Bytes altered = file;
  altered[file.size() / 2] ^= 1;
  EXPECT_THAT(std::string(TryAll(altered).message()), HasSubstr("not a whole PNG: "));
}

TEST(Png, ThatDeclaresMoreThanItCanHoldIsRefusedBeforeMemoryIsTaken) {
  const Bytes file = PngFile({.height = 1, .width = 1}, {1, 2, 3});
  const auto declare = [&](uint32_t height, uint32_t width) {
    Bytes lie = file;
    for (int i = 0; i < 4; ++i) {
      lie[16 + i] = static_cast<uint8_t>(width >> (24 - 8 * i));
      lie[20 + i] = static_cast<uint8_t>(height >> (24 - 8 * i));
    }
    // The checksum of the header, over its type and its 13 bytes.
    uint32_t crc = ~uint32_t{0};
    for (int i = 12; i < 29; ++i) {
      crc ^= lie[i];
      for (int b = 0; b < 8; ++b) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    for (int i = 0; i < 4; ++i) lie[29 + i] = static_cast<uint8_t>(~crc >> (24 - 8 * i));
    return std::string(TryAll(lie).message());
  };
  EXPECT_THAT(declare(8000, 8000), HasSubstr("declares 8000x8000 pixels, more than"));
  EXPECT_THAT(declare(1, 0x7fffffff), HasSubstr("declares 2147483647x1 pixels, expected at most"));
  EXPECT_THAT(declare(0, 5), HasSubstr("not a whole PNG"));
}

TEST(Decoder, RefusesWhatIsNeitherJpegNorPng) {
  EXPECT_THAT(std::string(TryAll({'G', 'I', 'F', '8', '9', 'a', 1, 0, 1}).message()),
              HasSubstr("begins with 'GIF89a\\x01\\x00', expected the start of a JPEG or a PNG"));
  EXPECT_FALSE(TryAll({}).ok());
  EXPECT_FALSE(TryAll({0xff, 0xd8}).ok());
}

TEST(Decoder, GoesOnAfterAnyDamage) {
  std::mt19937 random(7);
  const ImageSize size = {.height = 30, .width = 40};
  const Bytes picture = Picture(size, 3);
  const std::vector<Bytes> files = {
      JpegFile(size, 3, picture), JpegFile(size, 3, picture, {.progressive = true}),
      PngFile(size, picture), PngFile(size, picture, {.interlaced = true})};
  ImageDecoder decoder;
  Pixels pixels;
  const Bytes good = DecodeAll(files[0], 3);
  for (int i = 0; i < 2000; ++i) {
    Bytes file = files[random() % files.size()];
    for (uint32_t n = random() % 8 + 1; n > 0; --n) {
      file[random() % file.size()] = static_cast<uint8_t>(random());
    }
    const auto found = decoder.ReadHeader(file);
    if (found.ok() && found->height * found->width < 1 << 22) {
      decoder.Decode({.box = Whole(*found)}, pixels).IgnoreError();
    }
    if (i % 50 == 0) {
      ASSERT_TRUE(decoder.ReadHeader(files[0]).ok());
      ASSERT_TRUE(decoder.Decode({.box = Whole(size)}, pixels).ok());
      ASSERT_TRUE(std::equal(good.begin(), good.end(), pixels.bytes.begin()));
    }
  }
}

}  // namespace
}  // namespace trainyard::data
