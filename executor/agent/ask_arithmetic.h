#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/arithmetic.h"

namespace trainyard {

// Asks the program `worker` what results on `device` ("cpu", "cuda:1") depend on. A program that
// does not answer within `patience` is killed. A failure says why it is unknown.
absl::StatusOr<Arithmetic> AskArithmetic(const std::string& worker, const std::string& device,
                                         absl::Duration patience);

}  // namespace trainyard
