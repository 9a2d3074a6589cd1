#pragma once

// Images and archives for tests and for the seeds of the fuzzers, made with the libraries' own
// encoders.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/data/images/pixels.h"

namespace trainyard::data {

using Bytes = std::vector<uint8_t>;

// [height, width, channels] bytes of a smooth image with edges, the same every time.
Bytes Picture(const ImageSize& size, int64_t channels, uint32_t variant = 0);

struct JpegOptions {
  int quality = 90;
  int h_sampling = 2, v_sampling = 2;  // of luma against chroma
  bool progressive = false;
  int scans = 0;      // of a progressive file of one channel, at most 127; 0: libjpeg's own
  bool inks = false;  // 4 channels, as Adobe writes them: inverted
  bool adobe = true;  // with inks: whether the file says so
  bool restarts = false;
};

// `pixels` has 1, 3 or (inks) 4 channels.
Bytes JpegFile(const ImageSize& size, int64_t channels, const Bytes& pixels,
               const JpegOptions& options = {});

struct PngOptions {
  int colour_type = 2;  // PNG's: 0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGB with alpha
  int depth = 8;
  bool interlaced = false;
};

// `rows` are packed as PNG packs them, without filter bytes; the palette, where there is one, maps
// i to (i, 255 - i, i / 2).
Bytes PngFile(const ImageSize& size, const Bytes& rows, const PngOptions& options = {});

// A header and its content, padded to blocks of 512.
struct TarEntry {
  std::string name;
  std::string content;
  char type = '0';
  std::string magic = std::string("ustar\00000", 8);
  std::string prefix;
  int64_t stated_bytes = -1;  // below 0: those of the content
  int64_t stated_checksum = -1;
};
std::string TarBlocks(const TarEntry& entry);

// "LENGTH KEY=VALUE\n".
std::string PaxRecord(const std::string& key, const std::string& value);

// All of them and the end of an archive.
std::string TarFile(const std::vector<TarEntry>& entries);

// An archive of `n` samples: JPEG files of 24x20 pixels, sample i of class i % 3.
std::string SampleArchive(int64_t n);

std::string AsString(const Bytes& bytes);

}  // namespace trainyard::data
