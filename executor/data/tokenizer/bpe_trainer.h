#pragma once

// Learns the merges of a byte-level BPE from a text.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "executor/data/tokenizer/bpe.h"

namespace trainyard::data {

// The 256 bytes and then, as long as there are fewer than `vocab_size` tokens, the pair of
// neighbours within words that is most frequent; of equals the one of lower ids. A pair seen once
// is not worth a token, so that a small text gives fewer. The same text gives the same merges as
// `tokenizers`' ByteLevelBPETokenizer: BpeTrainer(vocab_size, min_frequency=2,
// initial_alphabet=ByteLevel.alphabet()) after ByteLevel(add_prefix_space=False), over
// train_from_iterator([text]).
// kInvalidArgument: text that is not UTF-8, or a word of more than kLongestWord bytes.
// `vocab_size` is at least 256.
absl::StatusOr<BpeModel> TrainBpe(absl::string_view text, int64_t vocab_size);

}  // namespace trainyard::data
