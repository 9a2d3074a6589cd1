#include "server/scheduler/slot_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

int SlotsOfJob(const JobRecord& job, const AttemptRecord& attempt) {
  int slots = 0;
  for (const RankRecord& rank : attempt.ranks) {
    if (rank.state != RankState::kGone) slots += static_cast<int>(rank.slots.size());
  }
  return IsResizing(job) ? std::max(slots, SlotsIn(job.resize->ranks)) : slots;
}

}  // namespace

int SlotsIn(const std::vector<RankSlots>& ranks) {
  int slots = 0;
  for (const RankSlots& rank : ranks) slots += static_cast<int>(rank.slots.size());
  return slots;
}

const std::string& LimitedProject(const JobRecord& job, const SlotLimits& limits) {
  static const std::string* const none = new std::string();
  return limits.count(job.project) > 0 ? job.project : *none;
}

ProjectSlots::ProjectSlots(const SchedulerSnapshot& snapshot) {
  std::map<std::string, const AttemptRecord*> attempts;
  for (const AttemptRecord& attempt : snapshot.attempts) attempts[attempt.job_uid] = &attempt;
  for (const JobRecord& job : snapshot.jobs) {
    const auto attempt = attempts.find(job.uid);
    if (HoldsSlots(job.state) && attempt != attempts.end()) Add(job, *attempt->second);
  }
}

void ProjectSlots::Add(const JobRecord& job, const AttemptRecord& attempt) {
  if (const int slots = SlotsOfJob(job, attempt); slots > 0) held_[job.project] += slots;
}

void ProjectSlots::Remove(const JobRecord& job, const AttemptRecord& attempt) {
  const auto held = held_.find(job.project);
  if (held == held_.end()) return;
  held->second -= SlotsOfJob(job, attempt);
  if (held->second <= 0) held_.erase(held);
}

int ProjectSlots::HeldBy(const std::string& project) const {
  const auto held = held_.find(project);
  return held == held_.end() ? 0 : held->second;
}

int SlotLedger::Limit(const JobRecord& job) const {
  const auto limit = limits_.find(job.project);
  return limit == limits_.end() ? INT_MAX : limit->second;
}

int SlotLedger::Held(const JobRecord& job) const {
  const auto taken = taken_.find(job.project);
  return held_.HeldBy(job.project) + (taken == taken_.end() ? 0 : taken->second);
}

int SlotLedger::Left(const JobRecord& job) const {
  const int limit = Limit(job);
  return limit == INT_MAX ? INT_MAX : std::max(0, limit - Held(job));
}

void SlotLedger::Take(const JobRecord& job, int slots) {
  if (slots > 0 && Limit(job) < INT_MAX) taken_[job.project] += slots;
}

std::optional<Reason> SlotLedger::WaitsFor(const JobRecord& job, const SlotDemand& demand) {
  const int left = Left(job);
  if (demand.count <= left) return std::nullopt;
  const int limit = Limit(job);
  const std::string needs = absl::StrCat("needs ", DescribeDemand(demand));
  if (demand.count > limit) {
    return Reason{reason::kProjectLimit, absl::StrCat(needs, "; jobs of projects/", job.project,
                                                      " may hold ", limit, " together")};
  }
  Take(job, left);
  return Reason{reason::kProjectLimit,
                absl::StrCat(needs, "; of the ", limit, " that jobs of projects/", job.project,
                             " may hold together too few are left, or others wait for them")};
}

}  // namespace trainyard
