#include "executor/data/images/decoder.h"

#include <algorithm>
#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trainyard::data {

namespace {

constexpr std::array<uint8_t, 3> kJpegStart = {0xff, 0xd8, 0xff};
constexpr std::array<uint8_t, 8> kPngStart = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

template <size_t N>
bool BeginsWith(absl::Span<const uint8_t> file, const std::array<uint8_t, N>& start) {
  return file.size() >= N && std::equal(start.begin(), start.end(), file.begin());
}

}  // namespace

absl::Status CheckSize(const ImageSize& size) {
  if (size.height < 1 || size.width < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("declares ", size.width, "x", size.height, " pixels: there is no image"));
  }
  if (size.height > kMostSide || size.width > kMostSide || size.height * size.width > kMostPixels) {
    return absl::InvalidArgumentError(absl::StrCat("declares ", size.width, "x", size.height,
                                                   " pixels, expected at most ", kMostSide,
                                                   " a side and ", kMostPixels, " together"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ImageSize> ImageDecoder::ReadHeader(absl::Span<const uint8_t> file) {
  if (BeginsWith(file, kJpegStart)) {
    current_ = jpeg_.get();
  } else if (BeginsWith(file, kPngStart)) {
    current_ = png_.get();
  } else {
    const absl::string_view start(reinterpret_cast<const char*>(file.data()),
                                  std::min<size_t>(file.size(), 8));
    return absl::InvalidArgumentError(absl::StrCat("begins with '", absl::CHexEscape(start),
                                                   "', expected the start of a JPEG or a PNG"));
  }
  return current_->ReadHeader(file);
}

}  // namespace trainyard::data
