#pragma once

// Tokens that text is searched for before it is cut into words: <|endoftext|> and the like.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::data {

struct AddedToken {
  std::string content;  // not empty
  int32_t id = 0;
  bool normalized = false;  // sought in what the others leave
};

// A part of a text: an added token, or text between them (id -1).
struct TextPiece {
  absl::string_view text;
  int32_t id = -1;
};

// Finds added tokens as `tokenizers` does: from left to right, of those that begin at one place the
// longest.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Views into `text`; none is empty.
  std::vector<TextPiece> Split(absl::string_view text) const;

 private:
  void SplitPiece(absl::string_view text, bool normalized, std::vector<TextPiece>& pieces) const;
  const AddedToken* Match(absl::string_view text, bool normalized) const;

  std::vector<AddedToken> tokens_;                       // longest first
  std::array<std::vector<int32_t>, 256> by_first_byte_;  // places in tokens_
};

}  // namespace trainyard::data
