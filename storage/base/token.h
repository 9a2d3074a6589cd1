#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Returns the token in `text`, without the white space around it; "" when there is none. `source`
// says where `text` comes from ("TRAINYARD_TOKEN", a file's path). kInvalidArgument: the token
// holds a character that an HTTP/2 header cannot carry (anything but visible ASCII); the message
// names the position of the character, never the token itself.
absl::StatusOr<std::string> ParseToken(absl::string_view text, absl::string_view source);

}  // namespace trainyard
