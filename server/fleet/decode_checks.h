#pragma once

// Checks of texts that agents send, and the errors for those that fail.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "storage/base/field_error.h"

namespace trainyard {

inline constexpr size_t kLongestText = 4096;  // messages and evidence are cut, URIs are refused

// Whether it has 1 to `longest` bytes, none of them a control character.
bool IsPrintable(absl::string_view text, size_t longest);

// kInvalidArgument unless IsPrintable, or, for the second, unless it is empty or IsPrintable.
absl::Status CheckPrintable(absl::string_view field, absl::string_view text, size_t longest);
absl::Status CheckPrintableOrEmpty(absl::string_view field, absl::string_view text, size_t longest);

// kInvalidArgument: there are more than `most`.
absl::Status CheckCount(absl::string_view field, int count, int most);

// For people: cut at a code point, without NUL (the database stores none).
std::string Readable(absl::string_view text);

}  // namespace trainyard
