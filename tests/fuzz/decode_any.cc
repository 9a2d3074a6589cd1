#include "tests/fuzz/decode_any.h"

#include <algorithm>

#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// Larger images are decoded alike, only slower.
constexpr int64_t kLargest = 1 << 20;  // pixels

}  // namespace

void DecodeAny(FormatDecoder& decoder, const uint8_t* choices, absl::Span<const uint8_t> file) {
  const absl::StatusOr<ImageSize> size = decoder.ReadHeader(file);
  if (!size.ok()) return;
  TY_CHECK(CheckSize(*size).ok(), size->width, "x", size->height);
  if (size->height * size->width > kLargest) return;
  const auto part = [](int64_t whole, int eighths) { return whole * (eighths % 8) / 8; };
  DecodeRequest request;
  request.box.x = part(size->width, choices[0]);
  request.box.y = part(size->height, choices[0] >> 3);
  request.box.width = std::max<int64_t>(1, part(size->width - request.box.x, choices[1]));
  request.box.height = std::max<int64_t>(1, part(size->height - request.box.y, choices[1] >> 3));
  request.channels = choices[0] >> 6 == 0 ? 1 : 3;
  request.reduction = int64_t{1} << (choices[1] >> 6);
  static Pixels& pixels = *new Pixels;
  const absl::StatusOr<int64_t> used = decoder.Decode(request, pixels);
  if (!used.ok()) return;
  const int64_t r = *used;
  TY_CHECK(pixels.x * r <= request.box.x && pixels.y * r <= request.box.y, pixels.x, " ", pixels.y);
  TY_CHECK((pixels.x + pixels.width) * r >= request.box.x + request.box.width, pixels.width);
  TY_CHECK((pixels.y + pixels.height) * r >= request.box.y + request.box.height, pixels.height);
  const auto bytes = static_cast<size_t>(pixels.height * pixels.width * request.channels);
  TY_CHECK(pixels.bytes.size() >= bytes, pixels.bytes.size(), " of ", bytes);
}

}  // namespace trainyard::data
