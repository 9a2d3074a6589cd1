#pragma once

// What a plan must know of the data, found with as little reading as possible. Pure but for files.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// Reads headers (IDX: also the labels, which are small; text and tables: the whole file). `data`
// must come from ResolveSpec; documents are cut by `windowing`. Sizes are known afterwards, but for
// BPE of more than 16 MiB of text, tables of more than 64 MiB, and archives of more than 200,000
// files, which must declare their classes: to count them would take the time of a training's
// start.
//   kNotFound, kPermissionDenied  a file that cannot be opened, by name
//   kInvalidArgument              not what the spec says: "FILE: found …, expected …"
//   kUnimplemented                a URI scheme that is not built, a tokenizer of another kind
absl::StatusOr<plan::DataFacts> ReadFacts(const v1::Data& data,
                                          const plan::Windowing& windowing = {});

// The same from what the spec declares alone, for a machine that does not see the files; nullopt
// when it does not declare enough. The sizes are 0 (unknown) but for generated data.
std::optional<plan::DataFacts> DeclaredFacts(const v1::Data& data,
                                             const plan::Windowing& windowing = {});

// The tokenizer of text; null of other data, and where finding it would mean to read more than 16
// MiB of text. Fails as ReadFacts.
absl::StatusOr<std::unique_ptr<const Tokenizer>> TokenizerOf(const v1::Data& data);

}  // namespace trainyard::data
