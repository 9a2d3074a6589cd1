#include "tests/unit/data/images/encoders.h"

#include <setjmp.h>
#include <stdio.h>
// After stdio.h, which it needs.
#include <jpeglib.h>
#include <png.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/status.h"

namespace trainyard::data {

Bytes Picture(const ImageSize& size, int64_t channels, uint32_t variant) {
  Bytes pixels;
  pixels.reserve(static_cast<size_t>(size.height * size.width * channels));
  for (int64_t y = 0; y < size.height; ++y) {
    for (int64_t x = 0; x < size.width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        const double wave = std::sin(0.11 * static_cast<double>(x * (c + 1)) + variant) *
                            std::cos(0.07 * static_cast<double>(y) + static_cast<double>(c));
        const bool edge = (x / 13 + y / 9 + c + variant) % 5 == 0;
        pixels.push_back(static_cast<uint8_t>(edge ? 250 - 60 * c : 128 + 90 * wave));
      }
    }
  }
  return pixels;
}

Bytes JpegFile(const ImageSize& size, int64_t channels, const Bytes& pixels,
               const JpegOptions& options) {
  jpeg_compress_struct c;
  jpeg_error_mgr errors;
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;  // NOLINT: the library's type
  jpeg_mem_dest(&c, &memory, &bytes);
  c.image_width = static_cast<JDIMENSION>(size.width);
  c.image_height = static_cast<JDIMENSION>(size.height);
  c.input_components = static_cast<int>(channels);
  c.in_color_space = channels == 1 ? JCS_GRAYSCALE : options.inks ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, options.quality, TRUE);
  if (channels == 3) {
    c.comp_info[0].h_samp_factor = options.h_sampling;
    c.comp_info[0].v_samp_factor = options.v_sampling;
  }
  if (options.inks) c.write_Adobe_marker = options.adobe;
  if (options.restarts) c.restart_in_rows = 1;
  if (options.progressive) jpeg_simple_progression(&c);
  std::vector<jpeg_scan_info> scans;
  if (options.scans > 0) {  // DC, then each AC coefficient, then the last bit of each
    scans.push_back({1, {0}, 0, 0, 0, 0});
    for (int i = 1; i < options.scans; ++i) {
      const int coefficient = (i - 1) % 63 + 1, pass = (i - 1) / 63;
      scans.push_back({1, {0}, coefficient, coefficient, pass, 1 - pass});
    }
    c.scan_info = scans.data();
    c.num_scans = static_cast<int>(scans.size());
  }
  jpeg_start_compress(&c, TRUE);
  while (c.next_scanline < c.image_height) {
    auto* row = const_cast<JSAMPROW>(pixels.data() + c.next_scanline * size.width * channels);
    jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  Bytes file(memory, memory + bytes);
  std::free(memory);
  return file;
}

Bytes PngFile(const ImageSize& size, const Bytes& rows, const PngOptions& options) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  Bytes file;
  const auto append = [](png_structp p, png_bytep data, size_t n) {
    auto* to = static_cast<Bytes*>(png_get_io_ptr(p));
    to->insert(to->end(), data, data + n);
  };
  png_set_write_fn(png, &file, append, [](png_structp) {});
  png_set_IHDR(png, info, static_cast<png_uint_32>(size.width),
               static_cast<png_uint_32>(size.height), options.depth, options.colour_type,
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (options.colour_type == PNG_COLOR_TYPE_PALETTE) {
    std::vector<png_color> palette;
    for (int i = 0; i < 1 << options.depth; ++i) {
      palette.push_back(
          {static_cast<png_byte>(i), static_cast<png_byte>(255 - i), static_cast<png_byte>(i / 2)});
    }
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  }
  png_write_info(png, info);
  const int passes = png_set_interlace_handling(png);
  const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(png, info));
  TY_CHECK(static_cast<int64_t>(rows.size()) == row_bytes * size.height, rows.size());
  for (int pass = 0; pass < passes; ++pass) {
    for (int64_t y = 0; y < size.height; ++y) png_write_row(png, rows.data() + y * row_bytes);
  }
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

std::string TarBlocks(const TarEntry& entry) {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    header.replace(at, text.size(), text);
  };
  const int64_t bytes =
      entry.stated_bytes < 0 ? static_cast<int64_t>(entry.content.size()) : entry.stated_bytes;
  put(0, entry.name.substr(0, 100));
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, absl::StrFormat("%011o", bytes));
  put(136, "00000000000");
  header[156] = entry.type;
  put(257, entry.magic);
  put(345, entry.prefix);
  put(148, "        ");
  int64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, absl::StrFormat("%06o", entry.stated_checksum < 0 ? sum : entry.stated_checksum));
  header[154] = '\0';
  std::string content = entry.content;
  content.resize((content.size() + 511) / 512 * 512, '\0');
  return header + content;
}

std::string PaxRecord(const std::string& key, const std::string& value) {
  size_t length = key.size() + value.size() + 3;
  while (absl::StrCat(length).size() + key.size() + value.size() + 3 != length) {
    length = absl::StrCat(length).size() + key.size() + value.size() + 3;
  }
  return absl::StrCat(length, " ", key, "=", value, "\n");
}

std::string TarFile(const std::vector<TarEntry>& entries) {
  std::string file;
  for (const TarEntry& entry : entries) file += TarBlocks(entry);
  file.append(1024, '\0');
  file.resize((file.size() + 10239) / 10240 * 10240, '\0');
  return file;
}

std::string SampleArchive(int64_t n) {
  std::vector<TarEntry> entries;
  for (int64_t i = 0; i < n; ++i) {
    const ImageSize size = {.height = 20, .width = 24};
    const std::string key = absl::StrFormat("%04d", i);
    entries.push_back({.name = absl::StrCat(key, ".cls"), .content = absl::StrCat(i % 3)});
    entries.push_back(
        {.name = absl::StrCat(key, ".jpg"),
         .content = AsString(JpegFile(size, 3, Picture(size, 3, static_cast<uint32_t>(i))))});
  }
  return TarFile(entries);
}

std::string AsString(const Bytes& bytes) { return std::string(bytes.begin(), bytes.end()); }

}  // namespace trainyard::data
