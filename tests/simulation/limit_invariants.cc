// What must hold of projects that may hold only so many slots together.

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/simulation/room.h"
#include "tests/simulation/yard.h"

namespace trainyard {
namespace {

// Whether a running job should give up what it has beyond its least for one of this priority.
bool GivesSurplus(const JobRecord& job, const AttemptRecord& attempt, int priority) {
  const bool over =
      std::any_of(attempt.ranks.begin(), attempt.ranks.end(), [](const RankRecord& rank) {
        return IsOver(rank.state) || rank.outcome != RankOutcome::kNone;
      });
  return job.state == JobState::kRunning && !over && attempt.layout == job.layout &&
         job.priority <= priority;
}

// A gang that is being resized holds what it has or will have, whichever is more, also between its
// two attempts. `for_priority`: less what is to be given up for a job of that one.
std::map<std::string, int> HeldByProjects(const SchedulerSnapshot& snapshot,
                                          std::optional<int> for_priority = std::nullopt) {
  std::map<std::string, int> held;
  for (const JobRecord& job : snapshot.jobs) {
    int slots = 0;
    for (const AttemptRecord& attempt : snapshot.attempts) {
      if (attempt.job_uid != job.uid) continue;
      slots = static_cast<int>(
          std::count_if(attempt.ranks.begin(), attempt.ranks.end(),
                        [](const RankRecord& rank) { return rank.state != RankState::kGone; }));
      if (for_priority.has_value() && GivesSurplus(job, attempt, *for_priority)) {
        slots = std::min(slots, job.min_slots);
      }
    }
    if (IsResizing(job)) slots = std::max(slots, static_cast<int>(job.resize->ranks.size()));
    held[job.project] += slots;
  }
  return held;
}

}  // namespace

bool Yard::MayBeLimited(const SchedulerSnapshot& snapshot, const JobRecord& job,
                        bool without_surplus) {
  const auto limit = snapshot.slot_limits.find(job.project);
  if (limit == snapshot.slot_limits.end()) return false;
  int wanted = HeldByProjects(snapshot, without_surplus ? std::optional<int>(job.priority)
                                                        : std::nullopt)[job.project] +
               job.min_slots;
  for (const JobRecord& other : snapshot.jobs) {
    const bool ahead =
        other.state == JobState::kQueued && other.project == job.project && IsAhead(other, job);
    if (ahead) wanted += other.min_slots;
  }
  return wanted > limit->second;
}

// Nothing was given to a project beyond its limit.
void Yard::CheckLimits(const SchedulerSnapshot& before, const SchedulerSnapshot& after) {
  std::map<std::string, int> had = HeldByProjects(before);
  for (const auto& [project, held] : HeldByProjects(after)) {
    const auto limit = after.slot_limits.find(project);
    if (limit == after.slot_limits.end()) continue;
    if (held == limit->second) ++faults_seen_["projects that had all of their slots"];
    if (held > had[project] && held > limit->second) {
      Breach(absl::StrCat("project ", project, " was given slots up to ", held, ", and may hold ",
                          limit->second));
    }
  }
}

void Yard::SetLimit() {
  const int limit = Chance(30) ? kNoLimit : Draw(8);
  (void)stores_.projects().SetProject({.name = "limited", .max_slots = limit});
  stores_.wakeups().Wake("queue");
}

}  // namespace trainyard
