#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/session.h"
#include "executor/plan/graph/stored_shards.h"
#include "executor/weights/safetensors.h"

namespace trainyard::engine {

// Copies what `file` stores of `parameter`, under its names after `prefix`, into the session's
// tensor `id` of the same shape, piece by piece: no second copy of the weights is ever held.
// kDataLoss when a type or shape differs from the plan's.
absl::Status ReadTensor(const weights::SafetensorsFile& file, const std::string& prefix,
                        const plan::Tensor& parameter, Session& session, plan::TensorId id);

// The same of one stored tensor, which `file` calls `name`.
absl::Status ReadStored(const weights::SafetensorsFile& file, const std::string& name,
                        const plan::StoredTensor& stored, Session& session, plan::TensorId id);

// The same of a tensor of which the plan has shards. `write` is told where each run of elements
// goes: the position of the parameter in Plan::of_group, and how many elements from its start.
absl::Status ReadStoredShards(
    const weights::SafetensorsFile& file, const std::string& name,
    const plan::StoredInShards& tensor, Session& session,
    absl::FunctionRef<void(size_t position, int64_t offset, absl::Span<const float> run)> write);

}  // namespace trainyard::engine
