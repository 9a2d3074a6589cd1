#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/job_store.h"

namespace trainyard {

// `state = RUNNING AND labels.team = "vision" AND priority >= 5`; empty text gives no terms.
//
//   filter = term { "AND" term }
//   term   = field op value
//   field  = "state" | "priority" | "job_id" | "labels." key
//   op     = "=" | "!=" | "<" | "<=" | ">" | ">="   (the orders for priority only)
//   value  = word | '"' text with \" and \\ '"'
//
// kInvalidArgument says column, found and expected.
absl::StatusOr<std::vector<JobFilter>> ParseFilter(absl::string_view text);

}  // namespace trainyard
