#include "executor/data/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace trainyard::data {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    by_first_byte_[static_cast<unsigned char>(tokens_[i].content[0])].push_back(
        static_cast<int32_t>(i));
  }
}

std::vector<TextPiece> AddedTokens::Split(absl::string_view text) const {
  if (tokens_.empty())
    return text.empty() ? std::vector<TextPiece>{} : std::vector<TextPiece>{{text}};
  std::vector<TextPiece> pieces;
  SplitPiece(text, /*normalized=*/false, pieces);
  std::vector<TextPiece> finer;
  for (const TextPiece& piece : pieces) {
    if (piece.id >= 0) {
      finer.push_back(piece);
    } else {
      SplitPiece(piece.text, /*normalized=*/true, finer);
    }
  }
  return finer;
}

void AddedTokens::SplitPiece(absl::string_view text, bool normalized,
                             std::vector<TextPiece>& pieces) const {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = Match(text.substr(at), normalized);
    if (token == nullptr) {
      ++at;
      continue;
    }
    if (at > begin) pieces.push_back({.text = text.substr(begin, at - begin)});
    pieces.push_back({.text = text.substr(at, token->content.size()), .id = token->id});
    begin = at += token->content.size();
  }
  if (begin < text.size()) pieces.push_back({.text = text.substr(begin)});
}

const AddedToken* AddedTokens::Match(absl::string_view text, bool normalized) const {
  for (const int32_t i : by_first_byte_[static_cast<unsigned char>(text[0])]) {
    const AddedToken& token = tokens_[static_cast<size_t>(i)];
    if (token.normalized == normalized && absl::StartsWith(text, token.content)) return &token;
  }
  return nullptr;
}

}  // namespace trainyard::data
