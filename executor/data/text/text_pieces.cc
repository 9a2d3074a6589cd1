#include "executor/data/text/text_pieces.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 18;
constexpr int64_t kLongestCharacter = 4;

// Bytes at the end of `text` that begin a character without ending it; 0 for what is no UTF-8.
int64_t Unfinished(absl::string_view text) {
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t n = 1; n < kLongestCharacter && n <= size; ++n) {
    const auto byte = static_cast<unsigned char>(text[static_cast<size_t>(size - n)]);
    if ((byte & 0xC0) == 0x80) continue;  // in the middle of a character
    const int64_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > n ? n : 0;
  }
  return 0;
}

}  // namespace

TextPieces::TextPieces(RegularFile file)
    : file_(std::move(file)), piece_(std::make_unique<char[]>(kPieceBytes)) {}

absl::StatusOr<TextPieces> TextPieces::Open(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(RegularFile file, OpenRegularFile(uri));
  if (file.bytes == 0) return absl::InvalidArgumentError(absl::StrCat(file.path, ": is empty"));
  return TextPieces(std::move(file));
}

absl::StatusOr<absl::string_view> TextPieces::Next() {
  offset_ = end_;
  const int64_t n = std::min(kPieceBytes, file_.bytes - offset_);
  TY_RETURN_IF_ERROR(ReadExactly(file_, offset_, piece_.get(), n));
  absl::string_view piece(piece_.get(), static_cast<size_t>(n));
  if (offset_ + n < file_.bytes) piece.remove_suffix(static_cast<size_t>(Unfinished(piece)));
  end_ = offset_ + static_cast<int64_t>(piece.size());
  return piece;
}

}  // namespace trainyard::data
