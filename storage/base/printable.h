#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// `text` with a '?' for each byte that is no UTF-8 (RFC 3629) and each control character but
// newline and tab: what may be stored in a message and shown, wherever it was read from.
std::string Printable(absl::string_view text);

}  // namespace trainyard
