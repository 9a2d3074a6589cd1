#pragma once

#include <string>

#include "absl/status/status.h"
#include "executor/engine/checkpoint/safetensors.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

// Copies tensor `name` of `file` into the session's tensor `id`, piece by piece: no second copy of
// the weights is ever held. kDataLoss when its type or shape differs from the plan's.
absl::Status ReadTensor(const SafetensorsFile& file, const std::string& name, Session& session,
                        plan::TensorId id);

}  // namespace trainyard::engine
