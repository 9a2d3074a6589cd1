#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trainyard::data {

// OK unless brackets stand in each other more deeply than any file that we read has them: a parser
// takes some 70 bytes for each. Reads no more than brackets and strings, and allocates nothing.
// kInvalidArgument: "found more than 64 brackets in each other at byte 64".
absl::Status CheckJsonDepth(absl::string_view json);

}  // namespace trainyard::data
