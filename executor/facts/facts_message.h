#pragma once

#include "absl/status/statusor.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/facts.pb.h"

namespace trainyard::facts {

v1::DataFacts ToMessage(const plan::DataFacts& facts);

// kInvalidArgument: numbers that no data has, or a kind of data of a newer version.
absl::StatusOr<plan::DataFacts> FromMessage(const v1::DataFacts& facts);

}  // namespace trainyard::facts
