#include "executor/data/images/idx.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "executor/data/files/inflating_reader.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;
constexpr int64_t kLabelsAtOnce = int64_t{1} << 18;
constexpr int64_t kLargestBytes = int64_t{1} << 36;

absl::StatusOr<uint32_t> ReadU32(InflatingReader& reader) {
  unsigned char b[4];
  TY_RETURN_IF_ERROR(reader.Read(b, 4));
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
}

absl::Status ExpectMagic(InflatingReader& reader, uint32_t expected, const char* what) {
  TY_ASSIGN_OR_RETURN(const uint32_t found, ReadU32(reader));
  if (found == expected) return absl::OkStatus();
  std::string hint;
  if (found == kImagesMagic) hint = " (this is a file of images)";
  if (found == kLabelsMagic) hint = " (this is a file of labels)";
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: found the magic number 0x%08x%s, expected 0x%08x of IDX %s",
                      reader.path(), found, hint, expected, what));
}

// count * height * width, which a file that `reader` reads can hold.
absl::StatusOr<int64_t> CheckedBytes(const InflatingReader& reader, uint32_t count, uint32_t height,
                                     uint32_t width) {
  // Each factor is below 2^32: exact in __int128.
  const __int128 bytes = static_cast<__int128>(count) * height * width;
  if (bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(reader.path(), ": declares ", count,
                                                   " samples of ", height, "x", width,
                                                   ": there is nothing to train on"));
  }
  if (bytes > std::min(kLargestBytes, reader.most_bytes())) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.path(), ": declares ", count, " samples of ", height, "x", width,
                     ", more than the file can hold (at most ",
                     std::min(kLargestBytes, reader.most_bytes()), " bytes)"));
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

absl::StatusOr<IdxImages> ReadIdxImages(const std::string& uri, bool header_only) {
  TY_ASSIGN_OR_RETURN(InflatingReader reader, InflatingReader::Open(uri));
  TY_RETURN_IF_ERROR(ExpectMagic(reader, kImagesMagic, "images"));
  TY_ASSIGN_OR_RETURN(const uint32_t count, ReadU32(reader));
  TY_ASSIGN_OR_RETURN(const uint32_t height, ReadU32(reader));
  TY_ASSIGN_OR_RETURN(const uint32_t width, ReadU32(reader));
  TY_ASSIGN_OR_RETURN(const int64_t bytes, CheckedBytes(reader, count, height, width));
  IdxImages images{.count = count, .height = height, .width = width};
  if (header_only) return images;
  images.pixels.resize(static_cast<size_t>(bytes));
  TY_RETURN_IF_ERROR(reader.Read(images.pixels.data(), bytes));
  TY_RETURN_IF_ERROR(reader.ExpectEnd());
  return images;
}

namespace {

// How many labels follow.
absl::StatusOr<int64_t> ReadLabelsHeader(InflatingReader& reader) {
  TY_RETURN_IF_ERROR(ExpectMagic(reader, kLabelsMagic, "labels"));
  TY_ASSIGN_OR_RETURN(const uint32_t count, ReadU32(reader));
  return CheckedBytes(reader, count, 1, 1);
}

}  // namespace

void IdxLabelCount::Add(absl::Span<const uint8_t> labels, int64_t classes) {
  for (const uint8_t label : labels) {
    largest = std::max<int64_t>(largest, label);
    if (first_over < 0 && label >= classes) {
      first_over = count;
      label_over = label;
    }
    ++count;
  }
}

absl::StatusOr<IdxLabelCount> CountIdxLabels(const std::string& uri, int64_t expected,
                                             int64_t classes) {
  TY_ASSIGN_OR_RETURN(InflatingReader reader, InflatingReader::Open(uri));
  TY_ASSIGN_OR_RETURN(const int64_t declared, ReadLabelsHeader(reader));
  if (declared != expected) return IdxLabelCount{.count = declared};
  IdxLabelCount found;
  std::vector<uint8_t> labels(static_cast<size_t>(std::min(declared, kLabelsAtOnce)));
  while (found.count < declared) {
    const int64_t n = std::min(declared - found.count, kLabelsAtOnce);
    TY_RETURN_IF_ERROR(reader.Read(labels.data(), n));
    found.Add(absl::MakeConstSpan(labels).subspan(0, n), classes);
  }
  TY_RETURN_IF_ERROR(reader.ExpectEnd());
  return found;
}

absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(InflatingReader reader, InflatingReader::Open(uri));
  TY_ASSIGN_OR_RETURN(const int64_t bytes, ReadLabelsHeader(reader));
  std::vector<uint8_t> labels(static_cast<size_t>(bytes));
  TY_RETURN_IF_ERROR(reader.Read(labels.data(), bytes));
  TY_RETURN_IF_ERROR(reader.ExpectEnd());
  return labels;
}

}  // namespace trainyard::data
