#include "storage/records/job.h"

#include <utility>

#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

constexpr std::pair<JobState, const char*> kStateNames[] = {
    {JobState::kQueued, "QUEUED"},       {JobState::kStarting, "STARTING"},
    {JobState::kRunning, "RUNNING"},     {JobState::kSuspending, "SUSPENDING"},
    {JobState::kSuspended, "SUSPENDED"}, {JobState::kCancelling, "CANCELLING"},
    {JobState::kCancelled, "CANCELLED"}, {JobState::kSucceeded, "SUCCEEDED"},
    {JobState::kFailed, "FAILED"},
};

constexpr std::pair<SuspendCause, const char*> kCauseNames[] = {
    {SuspendCause::kNone, "NONE"},
    {SuspendCause::kUser, "USER"},
    {SuspendCause::kPreempted, "PREEMPTED"},
    {SuspendCause::kDrained, "DRAINED"},
};

constexpr std::pair<ArithmeticRule, const char*> kRuleNames[] = {
    {ArithmeticRule::kUnknown, ""},
    {ArithmeticRule::kAny, "ANY"},
    {ArithmeticRule::kSameInAttempt, "SAME_IN_ATTEMPT"},
    {ArithmeticRule::kSame, "SAME"},
};

}  // namespace

absl::string_view JobStateName(JobState state) {
  for (const auto& [value, name] : kStateNames) {
    if (value == state) return name;
  }
  return "UNKNOWN";
}

std::optional<JobState> ParseJobState(absl::string_view name) {
  for (const auto& [value, known] : kStateNames) {
    if (name == known) return value;
  }
  return std::nullopt;
}

absl::string_view SuspendCauseName(SuspendCause cause) {
  for (const auto& [value, name] : kCauseNames) {
    if (value == cause) return name;
  }
  return "UNKNOWN";
}

std::optional<SuspendCause> ParseSuspendCause(absl::string_view name) {
  for (const auto& [value, known] : kCauseNames) {
    if (name == known) return value;
  }
  return std::nullopt;
}

absl::string_view ArithmeticRuleName(ArithmeticRule rule) {
  for (const auto& [value, name] : kRuleNames) {
    if (value == rule) return name;
  }
  return "";
}

std::optional<ArithmeticRule> ParseArithmeticRule(absl::string_view name) {
  for (const auto& [value, known] : kRuleNames) {
    if (name == known) return value;
  }
  return std::nullopt;
}

bool IsResizing(const JobRecord& job) {
  return (job.state == JobState::kSuspending || job.state == JobState::kQueued) &&
         job.reason.code == reason::kResizing && job.resize.has_value() &&
         job.resize->attempt == job.attempt;
}

JobState ShownState(const JobRecord& job) {
  const bool between = job.state == JobState::kSuspending || job.state == JobState::kQueued ||
                       job.state == JobState::kStarting;
  return between && job.reason.code == reason::kResizing ? JobState::kRunning : job.state;
}

absl::string_view JobTriggerName(JobTrigger trigger) {
  switch (trigger) {
    case JobTrigger::kPlace:
      return "PLACE";
    case JobTrigger::kFirstStep:
      return "FIRST_STEP";
    case JobTrigger::kPause:
      return "PAUSE";
    case JobTrigger::kPreempt:
      return "PREEMPT";
    case JobTrigger::kResume:
      return "RESUME";
    case JobTrigger::kCancel:
      return "CANCEL";
    case JobTrigger::kCancelLost:
      return "CANCEL_LOST";
    case JobTrigger::kRanksGone:
      return "RANKS_GONE";
    case JobTrigger::kSuspendedOk:
      return "SUSPENDED_OK";
    case JobTrigger::kSucceed:
      return "SUCCEED";
    case JobTrigger::kRetry:
      return "RETRY";
    case JobTrigger::kFail:
      return "FAIL";
    case JobTrigger::kRejoin:
      return "REJOIN";
  }
  return "UNKNOWN";
}

std::optional<JobState> NextJobState(JobState from, JobTrigger trigger) {
  for (const JobTransition& t : kJobTransitions) {
    if (t.from == from && t.trigger == trigger) return t.to;
  }
  return std::nullopt;
}

}  // namespace trainyard
