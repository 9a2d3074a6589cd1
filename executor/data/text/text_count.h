#pragma once

// Texts of characters or bytes, counted without ever being in memory as a whole.

#include <cstdint>

#include "absl/status/statusor.h"
#include "executor/data/text/text_pieces.h"
#include "executor/data/tokenizer/vocabulary.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// Of so many characters (bytes, to BYTES), those that train; as nanoGPT cuts it: int(0.9 * n).
int64_t TrainCharacters(const v1::TextData& spec, int64_t characters);

struct TextCount {
  int64_t distinct = 0;  // characters; 0 to BYTES, and where `known` was given
  int64_t train = 0;     // windows of documents, or tokens
  int64_t validation = 0;
};

// Reads `pieces` to the end, of masked windows twice; to BYTES that are not masked, nothing.
// `known`: may be null; else the only characters that may occur. kInvalidArgument: what is no
// UTF-8, or not known, by its offset.
absl::StatusOr<TextCount> CountText(const v1::TextData& spec, const plan::Windowing& windowing,
                                    TextPieces pieces, const Vocabulary* known);

}  // namespace trainyard::data
