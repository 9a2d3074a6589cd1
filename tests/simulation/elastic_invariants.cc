// What must hold of jobs that run on a range of slots.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/records/change.h"
#include "tests/simulation/room.h"
#include "tests/simulation/yard.h"

namespace trainyard {

// A gang has no fewer slots than it must and no more than it may, and it has not grown more often
// than it may.
void Yard::CheckSlots(const JobRecord& job, const AttemptRecord& attempt) {
  const auto ranks = static_cast<int>(attempt.ranks.size());
  const auto from = range_from_.find(job.uid);
  const bool ranged = from == range_from_.end() || attempt.attempt >= from->second;
  if (ranged && (ranks < job.min_slots || ranks > job.max_slots)) {
    Breach(absl::StrCat(job.uid, " has ", ranks, " ranks, of ", DescribeRange(job)));
  }
  const bool laid_out = attempt.layout == job.layout;
  if (ranged && !laid_out) {
    Breach(absl::StrCat(job.uid, " was placed in layout '", attempt.layout, "', it has '",
                        job.layout, "'"));
  }
  if (laid_out && ranks % job.slot_step != 0) {
    Breach(absl::StrCat(job.uid, " has ", ranks, " ranks, in steps of ", job.slot_step));
  }
  const size_t growths = job.resize.has_value() ? job.resize->growths.size() : 0;
  if (growths > static_cast<size_t>(PlannerOptions().most_growths)) {
    Breach(absl::StrCat(job.uid, " has grown ", growths, " times in an hour"));
  }
}

void Yard::CountResizes(const SchedulerSnapshot& after) {
  for (const JobRecord& job : after.jobs) {
    if (!IsResizing(job) || resized_[job.uid] == job.attempt) continue;
    resized_[job.uid] = job.attempt;
    for (const AttemptRecord& attempt : after.attempts) {
      if (attempt.job_uid != job.uid) continue;
      const bool asked = absl::StrContains(job.reason.message, "in another layout");
      if (asked) ++faults_seen_["gangs that left for another layout"];
      if (attempt.ranks.size() == job.resize->ranks.size()) continue;
      const bool grows = job.resize->ranks.size() > attempt.ranks.size();
      ++faults_seen_[grows ? "jobs that grew" : "jobs that shrank"];
    }
  }
}

// A job that is first and waits: nothing of no higher priority has slots beyond its least that
// would let it start, but those that are leaving already.
void Yard::CheckSurplus(const SchedulerSnapshot& after, const std::vector<NodeRecord>& judged,
                        const JobRecord& waits) {
  std::map<absl::string_view, const JobRecord*> jobs;
  for (const JobRecord& job : after.jobs) jobs[job.uid] = &job;
  const Room room(after, judged, ToMicroseconds(store_clock_.Now()));
  std::set<std::pair<std::string, int>> leave, surplus;
  for (const AttemptRecord& attempt : after.attempts) {
    const JobRecord& job = *jobs.at(attempt.job_uid);
    const bool over =
        std::any_of(attempt.ranks.begin(), attempt.ranks.end(), [](const RankRecord& rank) {
          return IsOver(rank.state) || rank.outcome != RankOutcome::kNone;
        });
    int spare = 0;
    // One that has not the slots for its new layout runs on as it is.
    const bool gives = attempt.layout == job.layout && !over && job.priority <= waits.priority;
    if (job.state == JobState::kRunning && gives) {
      spare = static_cast<int>(attempt.ranks.size()) - std::max(1, job.min_slots);
    }
    for (const RankRecord& rank : attempt.ranks) {
      if (IsOver(rank.state)) continue;
      const std::pair<std::string, int> slot(rank.node, rank.slots.front());
      const SlotRecord* const record = FindSlot(after, slot.first, slot.second);
      const bool serves =
          record != nullptr && SlotServes(*record, waits) && rank.node != room.AvoidedBy(waits);
      const bool kept =
          IsResizing(job) && std::count(job.resize->ranks.begin(), job.resize->ranks.end(),
                                        RankSlots{slot.first, {slot.second}}) > 0;
      const bool leaves = job.state == JobState::kSuspending || job.state == JobState::kCancelling;
      if (leaves && !kept) leave.insert(slot);
      if (serves && spare-- > 0) surplus.insert(slot);
    }
  }
  if (room.HoldsWith(waits, leave)) return;
  surplus.insert(leave.begin(), leave.end());
  if (room.HoldsWith(waits, surplus)) {
    Breach(absl::StrCat(waits.uid, " waits, and jobs of no higher priority have slots to spare"));
  }
}

}  // namespace trainyard
