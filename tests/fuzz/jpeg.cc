// JPEG files: what is decoded covers what was asked for, and a decoder goes on after any file.

#include "tests/fuzz/decode_any.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard::data;  // NOLINT: a program of its own
  static FormatDecoder& decoder = *MakeJpegDecoder().release();
  if (size > 2) DecodeAny(decoder, data, {data + 2, size - 2});
  return 0;
}
