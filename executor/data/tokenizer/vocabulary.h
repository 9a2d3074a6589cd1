#pragma once

// Texts as characters or bytes.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "executor/data/tokenizer/tokenizer.h"

namespace trainyard::data {

// The code points that occur in a text.
class CharacterSet {
 public:
  // `offset`: where `text` begins. kInvalidArgument: the first byte that is not UTF-8.
  absl::Status Add(absl::string_view text, int64_t offset = 0);

  // Sorted.
  std::vector<char32_t> CodePoints() const;

 private:
  std::array<bool, 128> ascii_ = {};
  std::vector<bool> others_;
};

// Either the 256 bytes, or one token per distinct Unicode code point, sorted by code point.
class Vocabulary final : public Tokenizer {
 public:
  static Vocabulary Bytes();

  // The code points of `text`. kInvalidArgument: the first byte that is not UTF-8, by its offset.
  static absl::StatusOr<Vocabulary> Characters(absl::string_view text);

  int64_t size() const override;
  bool bytes() const { return code_points_.empty(); }

  // kInvalidArgument names the first character that is not in the vocabulary, with its offset.
  absl::Status ForEachId(absl::string_view text,
                         absl::FunctionRef<void(int32_t)> add) const override;

  // The same of a text that begins at `offset`, without the ids.
  absl::Status Check(absl::string_view text, int64_t offset) const;

  std::string BytesOf(int32_t id) const override;

  // vocabulary.json: {"type": "characters", "vocabulary": "\n !…"} or {"type": "bytes"}.
  std::vector<NamedText> Files() const override;
  static absl::StatusOr<Vocabulary> FromJson(absl::string_view json);

 private:
  explicit Vocabulary(std::vector<char32_t> code_points);
  absl::Status Walk(absl::string_view text, int64_t offset,
                    absl::FunctionRef<void(int32_t)> add) const;
  // Of a code point; -1 when it has none.
  int32_t IdOf(char32_t c) const { return c < id_of_.size() ? id_of_[c] : -1; }

  std::vector<char32_t> code_points_;  // by id; empty: bytes
  std::vector<int32_t> id_of_;         // by code point up to the largest; -1: none
};

}  // namespace trainyard::data
