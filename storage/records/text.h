#pragma once

// Texts as the store can keep them: UTF-8 without NUL.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "storage/records/job.h"

namespace trainyard {

// kInvalidArgument, naming `field` and the byte, when `text` is not UTF-8 or holds a NUL.
absl::Status CheckText(absl::string_view field, absl::string_view text);
absl::Status CheckReason(const Reason& reason);  // of both its texts

// What a worker wrote must not stop its other events: bytes that are not UTF-8, and NULs, become
// U+FFFD, and what exceeds `limit` bytes is cut off at a character.
std::string CleanText(absl::string_view text, size_t limit = 16384);

}  // namespace trainyard
