#include "executor/data/tokenizer/added_tokens.h"

#include <utility>

namespace trainyard::data {

void AddedTokens::Trie::Add(absl::string_view content, int32_t place) {
  int32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = Next(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(places.size());
      places.push_back(-1);
      (node == 0 ? first[byte] : others[int64_t{node} * 256 + byte]) = next;
    }
    node = next;
  }
  places[static_cast<size_t>(node)] = place;
}

int32_t AddedTokens::Trie::Next(int32_t node, unsigned char byte) const {
  if (node == 0) return first[byte];
  const auto found = others.find(int64_t{node} * 256 + byte);
  return found == others.end() ? -1 : found->second;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    tries_[tokens_[i].normalized ? 1 : 0].Add(tokens_[i].content, static_cast<int32_t>(i));
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
    const AddedToken* token = Match(text.substr(at), tries_[normalized ? 1 : 0]);
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

const AddedToken* AddedTokens::Match(absl::string_view text, const Trie& trie) const {
  int32_t longest = -1;
  int32_t node = 0;
  for (const char c : text) {
    node = trie.Next(node, static_cast<unsigned char>(c));
    if (node < 0) break;
    const int32_t place = trie.places[static_cast<size_t>(node)];
    if (place >= 0) longest = place;
  }
  return longest < 0 ? nullptr : &tokens_[static_cast<size_t>(longest)];
}

}  // namespace trainyard::data
