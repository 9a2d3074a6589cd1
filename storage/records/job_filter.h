#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/records/job.h"

namespace trainyard {

// One term of a list filter; terms are joined by AND.
struct JobFilter {
  enum class Field { kState, kLabel, kPriority, kJobId };
  enum class Op { kEq, kNe, kLt, kLe, kGt, kGe };  // the orders for kPriority only
  Field field = Field::kState;
  Op op = Op::kEq;
  std::string label;  // key, for kLabel
  std::string value;  // canonical: a state name, a decimal number, text
};

// kInvalidArgument: an unknown state, a priority that is no number, an order on something else.
absl::Status CheckFilter(const std::vector<JobFilter>& filter);

// Whether `job` satisfies all terms of a filter that passed CheckFilter. A label that a job does
// not have differs from every value.
bool Matches(const JobRecord& job, const std::vector<JobFilter>& filter);

// Where a page of jobs ended; opaque to callers. Pages are ordered newest first by (create_time,
// uid).
struct JobCursor {
  absl::Time create_time = absl::InfiniteFuture();
  std::string uid;
};
std::string FormatCursor(const JobRecord& last);
absl::StatusOr<JobCursor> ParseCursor(const std::string& cursor);  // empty: the first page

}  // namespace trainyard
