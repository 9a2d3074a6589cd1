#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// `bytes` random bytes from the kernel, in lower-case hex.
std::string RandomHex(int bytes);

// Whether `id` is [a-z]([a-z0-9-]{0,61}[a-z0-9])?: the form of project and job ids (AIP-122).
bool IsResourceId(absl::string_view id);

// A readable job id made from `hint` ("char gpt" -> "char-gpt-7f3a9c01b2d4"); always a resource id.
std::string MakeJobId(absl::string_view hint);
// The same with `suffix`, which is of at most 20 lower-case letters and digits, in place of what is
// drawn.
std::string JobIdWith(absl::string_view hint, absl::string_view suffix);

}  // namespace trainyard
