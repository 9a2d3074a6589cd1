#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::data {

// What lies between the empty lines of `text`, the line ends around it left out. Lines end with
// "\n" or
// "\r\n".
std::vector<absl::string_view> DocumentsOf(absl::string_view text);

}  // namespace trainyard::data
