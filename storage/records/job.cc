#include "storage/records/job.h"

#include <utility>

#include "storage/base/enum_names.h"
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

constexpr std::pair<JobTrigger, const char*> kTriggerNames[] = {
    {JobTrigger::kPlace, "PLACE"},
    {JobTrigger::kFirstStep, "FIRST_STEP"},
    {JobTrigger::kPause, "PAUSE"},
    {JobTrigger::kPreempt, "PREEMPT"},
    {JobTrigger::kResume, "RESUME"},
    {JobTrigger::kCancel, "CANCEL"},
    {JobTrigger::kCancelLost, "CANCEL_LOST"},
    {JobTrigger::kRanksGone, "RANKS_GONE"},
    {JobTrigger::kSuspendedOk, "SUSPENDED_OK"},
    {JobTrigger::kSucceed, "SUCCEED"},
    {JobTrigger::kRetry, "RETRY"},
    {JobTrigger::kFail, "FAIL"},
    {JobTrigger::kRejoin, "REJOIN"},
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

absl::string_view JobStateName(JobState state) { return NameIn(kStateNames, state); }

std::optional<JobState> ParseJobState(absl::string_view name) { return ValueIn(kStateNames, name); }

absl::string_view SuspendCauseName(SuspendCause cause) { return NameIn(kCauseNames, cause); }

std::optional<SuspendCause> ParseSuspendCause(absl::string_view name) {
  return ValueIn(kCauseNames, name);
}

absl::string_view ArithmeticRuleName(ArithmeticRule rule) { return NameIn(kRuleNames, rule); }

std::optional<ArithmeticRule> ParseArithmeticRule(absl::string_view name) {
  return ValueIn(kRuleNames, name);
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

absl::string_view JobTriggerName(JobTrigger trigger) { return NameIn(kTriggerNames, trigger); }

std::optional<JobState> NextJobState(JobState from, JobTrigger trigger) {
  for (const JobTransition& t : kJobTransitions) {
    if (t.from == from && t.trigger == trigger) return t.to;
  }
  return std::nullopt;
}

}  // namespace trainyard
