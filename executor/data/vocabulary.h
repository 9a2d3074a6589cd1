#pragma once

// Text to token ids and back.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard::data {

// Either the 256 bytes, or one token per distinct Unicode code point, sorted by code point.
// Immutable.
class Vocabulary {
 public:
  static Vocabulary Bytes();

  // The code points of `text`. kInvalidArgument: the first byte that is not UTF-8, by its offset.
  static absl::StatusOr<Vocabulary> Characters(absl::string_view text);

  int64_t size() const;
  bool bytes() const { return code_points_.empty(); }

  // Of a code point, or of a byte; -1 when it has none.
  int32_t IdOf(char32_t code_point) const {
    if (bytes()) return code_point < 256 ? static_cast<int32_t>(code_point) : -1;
    return code_point < id_of_.size() ? id_of_[code_point] : -1;
  }

  // kInvalidArgument names the first character that is not in the vocabulary, with its offset.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;

  // Ids outside the vocabulary become U+FFFD (a padded output head can draw them).
  std::string Decode(absl::Span<const int32_t> ids) const;

  // The tokenizer file of a checkpoint: {"type": "characters", "vocabulary": "\n !…"} or
  // {"type": "bytes"}.
  std::string ToJson() const;
  static absl::StatusOr<Vocabulary> FromJson(absl::string_view json);

 private:
  explicit Vocabulary(std::vector<char32_t> code_points);

  std::vector<char32_t> code_points_;  // by id; empty: bytes
  std::vector<int32_t> id_of_;         // by code point up to the largest; -1: none
};

}  // namespace trainyard::data
