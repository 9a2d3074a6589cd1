#include "executor/data/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr size_t kMostCachedWords = size_t{1} << 20;
constexpr size_t kLongestCachedWord = 64;

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

// Encodes words, and remembers them: text repeats itself. For one thread, within one call.
class WordEncoder {
 public:
  explicit WordEncoder(const Bpe& bpe) : bpe_(bpe) {}

  // The ids stay valid until the next call.
  absl::Span<const int32_t> Encode(absl::string_view word) {
    const bool may_keep = word.size() <= kLongestCachedWord;
    if (may_keep) {
      const auto known = cache_.find(word);
      if (known != cache_.end()) return Kept(known->second);
    }
    if (!may_keep || cache_.size() >= kMostCachedWords) {
      ids_.clear();
      Append(word, ids_);
      return ids_;
    }
    const size_t at = kept_.size();
    Append(word, kept_);
    return Kept(cache_.emplace(word, Place{at, kept_.size() - at}).first->second);
  }

 private:
  struct Symbol {
    int32_t id = 0;                // -1: joined to the one before
    int32_t prev = -1, next = -1;  // -1: none
  };
  struct Place {
    size_t at = 0, n = 0;
  };

  absl::Span<const int32_t> Kept(const Place& place) const {
    return absl::MakeConstSpan(kept_).subspan(place.at, place.n);
  }

  void Append(absl::string_view word, std::vector<int32_t>& ids) {
    const BpeModel& model = bpe_.model_;
    const auto whole = model.whole_words.find(word);
    if (whole != model.whole_words.end()) {
      ids.push_back(whole->second);
      return;
    }
    const auto size = static_cast<int32_t>(word.size());
    symbols_.resize(word.size());
    for (int32_t i = 0; i < size; ++i) {
      symbols_[i] = {.id = model.byte_ids[static_cast<unsigned char>(word[i])],
                     .prev = i - 1,
                     .next = i + 1 < size ? i + 1 : -1};
    }
    MergeAll();
    for (int32_t at = 0; at >= 0; at = symbols_[at].next) ids.push_back(symbols_[at].id);
  }

  // The pair of lowest rank, of equals the leftmost, until no pair has a merge.
  void MergeAll() {
    queue_.clear();
    for (size_t i = 0; i + 1 < symbols_.size(); ++i) Offer(static_cast<int32_t>(i));
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
      const uint64_t first = queue_.back();
      queue_.pop_back();
      const BpeModel::Merge& merge = bpe_.model_.merges[first >> 32];
      const auto at = static_cast<int32_t>(first & 0xFFFFFFFF);
      Symbol& left = symbols_[at];
      // An earlier merge may have taken one of the two.
      if (left.id != merge.left || left.next < 0 || symbols_[left.next].id != merge.right) continue;
      Symbol& right = symbols_[left.next];
      left.id = merge.whole;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) symbols_[left.next].prev = at;
      Offer(at);
      if (left.prev >= 0) Offer(left.prev);
    }
  }

  // Queues the pair that begins at symbol `at`, if a merge joins it.
  void Offer(int32_t at) {
    const Symbol& left = symbols_[at];
    if (left.next < 0) return;
    const auto rank = bpe_.ranks_.find(PairOf(left.id, symbols_[left.next].id));
    if (rank == bpe_.ranks_.end()) return;
    queue_.push_back(static_cast<uint64_t>(rank->second) << 32 | static_cast<uint32_t>(at));
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  }

  const Bpe& bpe_;
  absl::flat_hash_map<std::string, Place> cache_;  // into kept_
  std::vector<int32_t> kept_, ids_;
  std::vector<Symbol> symbols_;  // of one word
  std::vector<uint64_t> queue_;  // of one word: a heap of rank << 32 | place of the left symbol
};

absl::Status CheckWord(size_t bytes) {
  if (bytes <= kLongestWord) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("found a word of ", bytes,
                                                 " bytes (no space, digit or punctuation in it), "
                                                 "expected at most ",
                                                 kLongestWord, "; break the text into lines"));
}

Bpe::Bpe(BpeModel model, std::string json)
    : model_(std::move(model)), json_(std::move(json)), added_(model_.added) {
  ranks_.reserve(model_.merges.size());
  for (size_t i = 0; i < model_.merges.size(); ++i) {
    ranks_[PairOf(model_.merges[i].left, model_.merges[i].right)] = static_cast<int32_t>(i);
  }
}

absl::Status Bpe::EncodePlain(absl::string_view text, WordEncoder& words,
                              absl::FunctionRef<void(int32_t)> add) const {
  std::string prefixed;
  if (model_.add_prefix_space && !text.empty() && text[0] != ' ') {
    prefixed = absl::StrCat(" ", text);
    text = prefixed;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = WordEnd(text, at, model_.pattern);
    TY_RETURN_IF_ERROR(CheckWord(end - at));
    for (const int32_t id : words.Encode(text.substr(at, end - at))) add(id);
    at = end;
  }
  return absl::OkStatus();
}

absl::Status Bpe::ForEachId(absl::string_view text, absl::FunctionRef<void(int32_t)> add) const {
  TY_RETURN_IF_ERROR(CheckUtf8(text));
  WordEncoder words(*this);
  for (const TextPiece& piece : added_.Split(text)) {
    if (piece.id >= 0) {
      add(piece.id);
    } else {
      TY_RETURN_IF_ERROR(EncodePlain(piece.text, words, add));
    }
  }
  return absl::OkStatus();
}

std::string Bpe::BytesOf(int32_t id) const {
  return id >= 0 && id < size() ? model_.tokens[static_cast<size_t>(id)] : "\xEF\xBF\xBD";
}

std::vector<NamedText> Bpe::Files() const {
  // transformers would otherwise take the class of the model's family, which adds tokens of its
  // own.
  static constexpr char kConfig[] =
      "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
      "  \"clean_up_tokenization_spaces\": false\n}\n";
  return {{.name = kTokenizerFile, .text = json_}, {.name = kTokenizerConfigFile, .text = kConfig}};
}

}  // namespace trainyard::data
