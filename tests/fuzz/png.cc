// PNG files: as jpeg.cc. Checksums are made right first, or hardly any input would get past them.

#include <zlib.h>

#include <vector>

#include "tests/fuzz/decode_any.h"

namespace {

// Of each chunk: length, type, content, checksum over type and content.
void MendChecksums(std::vector<uint8_t>& file) {
  for (size_t at = 8; at + 12 <= file.size();) {
    uint64_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | file[at + i];
    if (at + 12 + length > file.size()) return;
    const uint64_t crc = crc32(0, file.data() + at + 4, static_cast<uInt>(length + 4));
    for (int i = 0; i < 4; ++i)
      file[at + 8 + length + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    at += 12 + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard::data;  // NOLINT: a program of its own
  static FormatDecoder& decoder = *MakePngDecoder().release();
  if (size <= 2) return 0;
  std::vector<uint8_t> file(data + 2, data + size);
  MendChecksums(file);
  DecodeAny(decoder, data, file);
  return 0;
}
