#pragma once

// Tokens that text is searched for before it is cut into words: <|endoftext|> and the like.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace trainyard::data {

// So long a token can be at most, and so many can there be: text is searched in time that grows
// with the one, in memory that grows with both.
inline constexpr size_t kLongestAddedToken = 128;
inline constexpr size_t kMostAddedTokens = size_t{1} << 16;

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
  // The tokens of one kind by their bytes; node 0 is where each begins.
  struct Trie {
    Trie() { first.fill(-1); }
    void Add(absl::string_view content, int32_t place);
    int32_t Next(int32_t node, unsigned char byte) const;  // -1: there is none

    std::array<int32_t, 256> first;                // nodes after the first byte
    absl::flat_hash_map<int64_t, int32_t> others;  // 256 * node + byte -> node
    std::vector<int32_t> places = {-1};  // in tokens_, of what ends at a node; -1: nothing
  };

  void SplitPiece(absl::string_view text, bool normalized, std::vector<TextPiece>& pieces) const;
  const AddedToken* Match(absl::string_view text, const Trie& trie) const;

  std::vector<AddedToken> tokens_;
  std::array<Trie, 2> tries_;  // by `normalized`
};

}  // namespace trainyard::data
