#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// kInvalidArgument: "job.priority: found 5000, expected -1000 to 1000". `found`: text or a number.
inline absl::Status FieldError(absl::string_view field, const absl::AlphaNum& found,
                               absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": found ", found, ", expected ", expected));
}

}  // namespace trainyard
