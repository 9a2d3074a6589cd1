#include "storage/records/job_filter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

template <typename T>
bool Compare(JobFilter::Op op, const T& left, const T& right) {
  switch (op) {
    case JobFilter::Op::kEq:
      return left == right;
    case JobFilter::Op::kNe:
      return left != right;
    case JobFilter::Op::kLt:
      return left < right;
    case JobFilter::Op::kLe:
      return left <= right;
    case JobFilter::Op::kGt:
      return left > right;
    case JobFilter::Op::kGe:
      return left >= right;
  }
  return false;
}

bool Matches(const JobRecord& job, const JobFilter& term) {
  switch (term.field) {
    case JobFilter::Field::kState:
      return Compare<absl::string_view>(term.op, JobStateName(ShownState(job)), term.value);
    case JobFilter::Field::kJobId:
      return Compare(term.op, job.job_id, term.value);
    case JobFilter::Field::kPriority: {
      int value = 0;
      return absl::SimpleAtoi(term.value, &value) && Compare(term.op, job.priority, value);
    }
    case JobFilter::Field::kLabel: {
      const auto label = job.labels.find(term.label);
      if (label == job.labels.end()) return term.op == JobFilter::Op::kNe;
      return Compare(term.op, label->second, term.value);
    }
  }
  return false;
}

}  // namespace

absl::Status CheckFilter(const std::vector<JobFilter>& filter) {
  for (const JobFilter& term : filter) {
    TY_RETURN_IF_ERROR(CheckText("filter: label", term.label));
    TY_RETURN_IF_ERROR(CheckText("filter: value", term.value));
    int number = 0;
    if (term.field == JobFilter::Field::kState && !ParseJobState(term.value)) {
      return absl::InvalidArgumentError(absl::StrCat("filter: state: found '", term.value,
                                                     "', expected a state such as RUNNING"));
    }
    if (term.field == JobFilter::Field::kPriority && !absl::SimpleAtoi(term.value, &number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("filter: priority: found '", term.value, "', expected a whole number"));
    }
    if (term.field != JobFilter::Field::kPriority && term.op != JobFilter::Op::kEq &&
        term.op != JobFilter::Op::kNe) {
      return absl::InvalidArgumentError("filter: only priority has an order; expected = or !=");
    }
  }
  return absl::OkStatus();
}

bool Matches(const JobRecord& job, const std::vector<JobFilter>& filter) {
  return std::all_of(filter.begin(), filter.end(),
                     [&job](const JobFilter& term) { return Matches(job, term); });
}

std::string FormatCursor(const JobRecord& last) {
  return absl::StrCat(absl::ToUnixMicros(last.create_time), ".", last.uid);
}

absl::StatusOr<JobCursor> ParseCursor(const std::string& cursor) {
  if (cursor.empty()) return JobCursor{};
  TY_RETURN_IF_ERROR(CheckText("cursor", cursor));
  const std::pair<std::string, std::string> parts = absl::StrSplit(cursor, absl::MaxSplits('.', 1));
  int64_t micros = 0;
  constexpr int64_t kYear9999 = int64_t{253402300799} * 1000000;  // PostgreSQL takes little more
  if (parts.second.empty() || !absl::SimpleAtoi(parts.first, &micros) || micros < 0 ||
      micros > kYear9999) {
    return absl::InvalidArgumentError(
        absl::StrCat("page token: found '", cursor, "', expected one from an earlier page"));
  }
  return JobCursor{absl::FromUnixMicros(micros), parts.second};
}

}  // namespace trainyard
