#include "executor/data/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "executor/data/tokenizer/byte_level.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kLeastFrequency = 2;

using Pair = std::pair<int32_t, int32_t>;  // of token ids

// The distinct words of a text as one row of symbols; merging a pair makes one symbol of two.
// Counts of pairs are kept up to date, and where a pair may be is remembered, so that a merge costs
// as much as the pair has occurrences.
class Merger {
 public:
  Merger(const absl::flat_hash_map<absl::string_view, int64_t>& words, BpeModel& model)
      : model_(model) {
    for (size_t id = 0; id < model.tokens.size(); ++id) {
      id_of_[model.tokens[id]] = static_cast<int32_t>(id);
    }
    for (const auto& [word, count] : words) AddWord(word, count);
    QueueFresh();
  }

  void Run(int64_t vocab_size) {
    while (static_cast<int64_t>(model_.tokens.size()) < vocab_size && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Candidate top = queue_.back();
      queue_.pop_back();
      const int64_t count = pairs_[top.pair].count;
      if (top.count != count) {  // some of it went into other merges since
        top.count = count;
        Push(top);
        continue;
      }
      if (count < kLeastFrequency) return;
      MergeEverywhere(top);
      QueueFresh();
    }
  }

 private:
  struct Symbol {
    int32_t id = 0;                // -1: joined to the one before
    int32_t prev = -1, next = -1;  // -1: the word ends
    int32_t word = 0;
  };

  // Places (of the left symbol) where a pair came to be in one round; some may be gone since.
  using Places = std::vector<int32_t>;

  struct PairState {
    int64_t count = 0;
    int64_t round = -1;  // of the last of `places`
    absl::InlinedVector<Places, 1> places;
  };

  // One per round in which a pair came to be. A second one is rare: it takes a token that two
  // different merges make.
  struct Candidate {
    int64_t count = 0;
    Pair pair;
    int64_t round = 0;
    size_t places = 0;  // which of the pair's

    // Whether this one goes after `other`.
    bool operator<(const Candidate& other) const {
      if (count != other.count) return count < other.count;
      if (pair != other.pair) return pair > other.pair;
      return round > other.round;
    }
  };

  void AddWord(absl::string_view word, int64_t count) {
    const auto first = static_cast<int32_t>(symbols_.size());
    for (const char byte : word) {
      const auto at = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({.id = model_.byte_ids[static_cast<unsigned char>(byte)],
                          .prev = at - 1,
                          .next = at + 1,
                          .word = static_cast<int32_t>(counts_.size())});
    }
    symbols_[first].prev = -1;
    symbols_.back().next = -1;
    counts_.push_back(count);
    for (int32_t at = first; symbols_[at].next >= 0; at = symbols_[at].next) Gain(at);
  }

  Pair PairAt(int32_t left) const { return {symbols_[left].id, symbols_[symbols_[left].next].id}; }
  int64_t CountAt(int32_t at) const { return counts_[symbols_[at].word]; }

  // The pair whose left symbol is at `left` has come to be.
  void Gain(int32_t left) {
    const Pair pair = PairAt(left);
    PairState& state = pairs_[pair];
    state.count += CountAt(left);
    if (state.round != round_) {
      state.round = round_;
      state.places.emplace_back();
      fresh_.push_back(pair);
    }
    state.places.back().push_back(left);
  }

  void Lose(int32_t left) { pairs_[PairAt(left)].count -= CountAt(left); }

  void Push(const Candidate& candidate) {
    queue_.push_back(candidate);
    std::push_heap(queue_.begin(), queue_.end());
  }

  void QueueFresh() {
    for (const Pair& pair : fresh_) {
      const PairState& state = pairs_[pair];
      if (state.count <= 0) continue;
      Push(
          {.count = state.count, .pair = pair, .round = round_, .places = state.places.size() - 1});
    }
    fresh_.clear();
    ++round_;
  }

  // All places to merge at, in order. As `tokenizers` does it, a candidate stands for all that its
  // pair has in the words where it came to be, also what came later there.
  Places PlacesOf(const Candidate& candidate) {
    auto& all = pairs_[candidate.pair].places;
    Places places = std::exchange(all[candidate.places], {});
    if (all.size() > 1) {
      std::vector<int32_t> words;
      for (const int32_t at : places) words.push_back(symbols_[at].word);
      std::sort(words.begin(), words.end());
      for (const Places& others : all) {
        for (const int32_t at : others) {
          if (std::binary_search(words.begin(), words.end(), symbols_[at].word)) {
            places.push_back(at);
          }
        }
      }
    }
    std::sort(places.begin(), places.end());
    return places;
  }

  void MergeEverywhere(const Candidate& candidate) {
    const auto [left, right] = candidate.pair;
    const std::string bytes = model_.tokens[left] + model_.tokens[right];
    const auto [known, fresh] = id_of_.emplace(bytes, static_cast<int32_t>(model_.tokens.size()));
    if (fresh) model_.tokens.push_back(bytes);
    const int32_t whole = known->second;
    model_.merges.push_back({left, right, whole});
    for (const int32_t at : PlacesOf(candidate)) {
      const int32_t next = symbols_[at].next;
      if (symbols_[at].id == left && next >= 0 && symbols_[next].id == right) MergeAt(at, whole);
    }
  }

  // The count of the merged pair itself stays: nobody asks for it again, but for a candidate of a
  // later round, which `tokenizers` lets go with the same count.
  void MergeAt(int32_t at, int32_t whole) {
    const int32_t gone = symbols_[at].next;
    const int32_t before = symbols_[at].prev, after = symbols_[gone].next;
    if (before >= 0) Lose(before);
    if (after >= 0) Lose(gone);
    symbols_[at].id = whole;
    symbols_[at].next = after;
    symbols_[gone].id = -1;
    if (after >= 0) symbols_[after].prev = at;
    if (before >= 0) Gain(before);
    if (after >= 0) Gain(at);
  }

  BpeModel& model_;
  absl::flat_hash_map<std::string, int32_t> id_of_;
  std::vector<Symbol> symbols_;
  std::vector<int64_t> counts_;  // by word
  absl::flat_hash_map<Pair, PairState> pairs_;
  std::vector<Pair> fresh_;  // that came to be in this round
  int64_t round_ = 0;        // merges so far
  std::vector<Candidate> queue_;
};

// Of two merges of one pair, the later; as a table that is filled in order.
void KeepLastOfEachPair(std::vector<BpeModel::Merge>& merges) {
  absl::flat_hash_map<Pair, size_t> last;
  for (size_t i = 0; i < merges.size(); ++i) last[{merges[i].left, merges[i].right}] = i;
  size_t kept = 0;
  for (size_t i = 0; i < merges.size(); ++i) {
    if (last[{merges[i].left, merges[i].right}] == i) merges[kept++] = merges[i];
  }
  merges.resize(kept);
}

}  // namespace

absl::StatusOr<BpeModel> TrainBpe(absl::string_view text, int64_t vocab_size) {
  TY_CHECK(vocab_size >= 256, vocab_size);
  TY_RETURN_IF_ERROR(CheckUtf8(text));
  BpeModel model;
  for (const uint8_t byte : BytesByCharacter()) {
    model.byte_ids[byte] = static_cast<int32_t>(model.tokens.size());
    model.tokens.emplace_back(1, static_cast<char>(byte));
  }
  absl::flat_hash_map<absl::string_view, int64_t> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = WordEnd(text, at, model.pattern);
    TY_RETURN_IF_ERROR(CheckWord(end - at));
    ++words[text.substr(at, end - at)];
    at = end;
  }
  Merger(words, model).Run(vocab_size);
  KeepLastOfEachPair(model.merges);
  return model;
}

}  // namespace trainyard::data
