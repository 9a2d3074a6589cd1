#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// The token that `text`, of `source` ("TRAINYARD_TOKEN", a file's path), holds, without white space
// around it; "" when there is none. kInvalidArgument: a character that no header of HTTP/2 carries
// (anything but the visible ones of ASCII), told by its place, never the token itself.
absl::StatusOr<std::string> ParseToken(absl::string_view text, absl::string_view source);

}  // namespace trainyard
