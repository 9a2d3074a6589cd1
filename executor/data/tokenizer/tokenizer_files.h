#pragma once

// The tokenizer that the folder of a model holds.

#include <string>

#include "absl/status/statusor.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// tokenizer.json of the folder `uri`, else its vocabulary.json. kNotFound: there is neither.
absl::StatusOr<NamedText> FindTokenizerFile(const std::string& uri);

// `text` (from ResolveSpec) with what its tokenizer FROM_CHECKPOINT is: BPE, CHARACTERS or BYTES,
// and the file it is read from; as it is when it names another one.
//   kNotFound, kPermissionDenied  this machine sees no tokenizer there
//   kInvalidArgument              a file that is none
//   kUnimplemented                one that is not built
absl::StatusOr<v1::TextData> WithFoundTokenizer(const v1::TextData& text);

}  // namespace trainyard::data
