#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Bytes of an answer at which a page ends early: the peer takes 4 MiB.
inline constexpr size_t kLargestAnswer = 3 << 20;

// A page token is a cursor tied to its question (method, parent, filter: whatever must not change
// between pages). Opaque to clients and checked, so that a wrong one is an error and not a wrong
// page. It is no secret and grants nothing. An empty cursor gives an empty token: the last page.
std::string MakePageToken(absl::string_view question, absl::string_view cursor);

// The cursor; empty for an empty token. kInvalidArgument: damaged, or from another question.
absl::StatusOr<std::string> ReadPageToken(absl::string_view question, absl::string_view token);

}  // namespace trainyard
