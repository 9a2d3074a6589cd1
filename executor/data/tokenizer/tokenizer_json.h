#pragma once

// tokenizer.json of Hugging Face's `tokenizers`, as far as it describes byte-level BPE.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "executor/data/tokenizer/bpe.h"

namespace trainyard::data {

// Takes a model of type BPE without dropout, affixes and byte_fallback whose vocabulary has the 256
// bytes; as pre_tokenizer ByteLevel, or a Split by one of the two expressions in words.h with
// ByteLevel after it; no normalizer, truncation or padding. Decoder ByteLevel or none. A
// post_processor is kept for others, but not applied. Anything else is refused, as is what makes no
// sense: ids that repeat or leave a hole, merges of what is no token, types that are others.
//   kInvalidArgument  "model.merges[7]: found …, expected …"
//   kUnimplemented    the same for what `tokenizers` could read
absl::StatusOr<std::unique_ptr<const Bpe>> BpeFromJson(std::string json);

// What BpeFromJson and `tokenizers` read back to the same model.
std::string BpeToJson(const BpeModel& model);

}  // namespace trainyard::data
