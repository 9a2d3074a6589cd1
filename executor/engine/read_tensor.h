#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
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

// The same of a tensor of which the plan has shards: each piece goes to `places` at its position,
// by the group (plan::ByGroup); kNone: nowhere.
absl::Status ReadStoredShards(const weights::SafetensorsFile& file, const std::string& name,
                              const plan::StoredInShards& tensor,
                              const std::vector<plan::TensorId>& places, Session& session);

}  // namespace trainyard::engine
