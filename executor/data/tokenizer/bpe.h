#pragma once

// Byte-level byte-pair encoding as GPT-2's: text is cut into words, and the bytes of a word are
// joined by merges that were learnt from a text, the first learnt first (Sennrich et al. 2016,
// arXiv:1508.07909; Radford et al. 2019). Ids are those of the Hugging Face package `tokenizers`,
// without the special tokens that its post-processors put around a text.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "executor/data/tokenizer/added_tokens.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/data/tokenizer/words.h"

namespace trainyard::data {

struct BpeModel {
  struct Merge {
    int32_t left = 0, right = 0, whole = 0;
  };

  std::vector<std::string> tokens;         // their bytes, by id
  std::array<int32_t, 256> byte_ids = {};  // the token of each byte alone
  std::vector<Merge> merges;               // first the one that goes first; no pair twice
  std::vector<AddedToken> added;
  WordPattern pattern = WordPattern::kGpt2;
  bool add_prefix_space = false;  // before a text that begins otherwise
  // Words that are a token whatever the merges say; for `ignore_merges` of Llama 3.
  absl::flat_hash_map<std::string, int32_t> whole_words;
};

// Bounds the memory of one word. Those of a language are shorter by far; a file without spaces,
// digits or punctuation is one.
inline constexpr size_t kLongestWord = size_t{16} << 20;
absl::Status CheckWord(size_t bytes);

class WordEncoder;

class Bpe final : public Tokenizer {
 public:
  // `json`: what tokenizer.json says of `model`.
  Bpe(BpeModel model, std::string json);

  int64_t size() const override { return static_cast<int64_t>(model_.tokens.size()); }

  // kInvalidArgument: text that is not UTF-8, or a word of more than kLongestWord bytes.
  absl::Status ForEachId(absl::string_view text,
                         absl::FunctionRef<void(int32_t)> add) const override;
  std::string BytesOf(int32_t id) const override;
  std::vector<NamedText> Files() const override;

  const BpeModel& model() const { return model_; }

 private:
  friend class WordEncoder;
  absl::Status EncodePlain(absl::string_view text, WordEncoder& words,
                           absl::FunctionRef<void(int32_t)> add) const;

  const BpeModel model_;
  const std::string json_;
  const AddedTokens added_;
  absl::flat_hash_map<uint64_t, int32_t> ranks_;  // of a pair of ids: its place in merges
};

}  // namespace trainyard::data
