#pragma once

// Compares config.json of a folder with the model that a job trains.

#include <string>

#include "absl/status/status.h"
#include "executor/plan/graph/plan.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::weights {

// Checks that the model which `configuration` (an object that ParseModelJson accepts) describes
// computes what `spec.model` of a resolved spec does. `place` names the file in messages. Keys that
// are absent have transformers' defaults. kInvalidArgument lists every difference that changes the
// numbers: the field, both values, what to set. Shapes that follow from the data (classes) are not
// compared, nor is the vocabulary when its embedding is drawn anew.
absl::Status CheckConfiguration(const std::string& place, const std::string& configuration,
                                const v1::JobSpec& spec, const plan::Plan& plan);

// Whether the folder's weights were trained by Trainyard.
bool IsOurs(const std::string& configuration);

// The stored name of the token embedding of `plan`, or "".
std::string TokenEmbeddingOf(const plan::Plan& plan);

}  // namespace trainyard::weights
