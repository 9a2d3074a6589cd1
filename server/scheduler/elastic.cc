#include "server/scheduler/elastic.h"

#include <algorithm>
#include <climits>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/rank_groups.h"
#include "storage/records/change.h"
#include "storage/records/reason_codes.h"

namespace trainyard {
namespace {

// A job grows once it has run for so many times as long as its start took: what is lost to growing
// stays a small part, however soon the job ends.
constexpr int kRunOverStart = 10;
constexpr absl::Duration kLongestStart = absl::Minutes(5);  // that counts

constexpr char kAskedForLayout[] = "it was asked to go on in another layout";

// Of so many slots, those that are whole steps of the job.
size_t WholeSteps(const JobRecord& job, size_t slots) {
  const auto step = static_cast<size_t>(std::max(1, job.slot_step));
  return slots / step * step;
}

// In the order in which they are numbered, without those beyond the last whole step.
void Arrange(const JobRecord& job, std::vector<Placement::Rank>& ranks) {
  KeepGroupsTogether(ranks, job.group_ranks);
  ranks.resize(WholeSteps(job, ranks.size()));
}

bool AnyOver(const AttemptRecord& attempt) {
  return std::any_of(attempt.ranks.begin(), attempt.ranks.end(), [](const RankRecord& rank) {
    return IsOver(rank.state) || rank.outcome != RankOutcome::kNone;
  });
}

std::string Change(const AttemptRecord& attempt, size_t slots) {
  return absl::StrCat("resized ", attempt.ranks.size(), " -> ", slots, ": ");
}

// Ranks of a node side by side, nodes in the order of their first rank.
void GroupByNode(std::vector<Placement::Rank>& ranks) {
  std::map<std::string, size_t> first;
  for (size_t i = 0; i < ranks.size(); ++i) first.try_emplace(ranks[i].node, i);
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](const auto& a, const auto& b) { return first[a.node] < first[b.node]; });
}

}  // namespace

int LeastSlots(const JobRecord& job) { return std::max(1, job.min_slots); }

int UsefulSlots(const JobRecord& job, int slots) {
  const int step = std::max(1, job.slot_step), groups = slots / step;
  if (job.logical_ranks < groups || groups < 1) return groups * step;
  const int most_hosted = (job.logical_ranks + groups - 1) / groups;
  return (job.logical_ranks + most_hosted - 1) / most_hosted * step;
}

bool IsElastic(const JobRecord& job, const AttemptRecord& attempt) {
  const int slots = static_cast<int>(attempt.ranks.size());
  if (slots == 0) return false;
  return job.min_slots < job.max_slots || slots > job.max_slots || slots < job.min_slots ||
         attempt.layout != job.layout;
}

std::optional<Resize> StayElsewhere(const JobRecord& job, const AttemptRecord& attempt,
                                    const GivenAway& given) {
  if (job.state != JobState::kRunning || AnyOver(attempt) || given.leaves) return std::nullopt;
  if (attempt.layout != job.layout) return std::nullopt;  // which its other slots may not hold
  std::vector<Placement::Rank> left = SlotsOf(attempt);
  std::erase_if(left,
                [&](const Placement::Rank& rank) { return given.nodes.count(rank.node) > 0; });
  Arrange(job, left);
  if (static_cast<int>(left.size()) < LeastSlots(job)) return std::nullopt;
  Reason reason{reason::kResizing, absl::StrCat(Change(attempt, left.size()), given.why)};
  return Resize{.job_uid = job.uid,
                .job_version = job.version,
                .ranks = std::move(left),
                .reason = std::move(reason),
                .grace = given.grace};
}

Elastic::Elastic(const Cluster& cluster, const PlannerOptions& options, SlotTable& slots,
                 SlotLedger& ledger, Pass& pass)
    : now_(cluster.now), options_(options), slots_(slots), ledger_(ledger), pass_(pass) {
  KeepForResizes(cluster);
  PlaceResized(cluster);
  FindGangs(cluster);
  FindWhatLeaves(cluster);
  LookAhead(cluster);
  for (Gang& gang : gangs_) {
    if (IsLaidOut(gang)) {
      TakeWhatIsTooMuch(gang);
    } else {
      ChangeLayout(gang);
    }
  }
}

void Elastic::TakeWhatIsTooMuch(Gang& gang) {
  const size_t most = static_cast<size_t>(gang.job->max_slots);
  if (gang.ranks.size() <= most) return;
  std::vector<size_t> go = ThatCouldGo(gang, {}, {}).ranks;
  go.resize(gang.ranks.size() - most);
  Drop(gang, std::move(go));
  Decide(gang, false, absl::StrCat("it was asked to take at most ", most));
}

bool Elastic::MayStay(const SlotDemand& demand, const Placement::Rank& rank) const {
  return std::all_of(rank.slots.begin(), rank.slots.end(),
                     [&](int slot) { return slots_.IsLargeEnough(demand, rank.node, slot); });
}

// A gang of which too few ranks may stay takes its new layout when it gets more slots (Grow), and
// runs on as it is until then.
void Elastic::ChangeLayout(Gang& gang) {
  const SlotDemand demand = slots_.DemandOf(*gang.job);
  std::vector<size_t> go;
  for (size_t i = 0; i < gang.ranks.size(); ++i) {
    if (!MayStay(demand, gang.ranks[i])) go.push_back(i);
  }
  const size_t most = static_cast<size_t>(gang.job->max_slots);
  const size_t whole = WholeSteps(*gang.job, std::min(most, gang.ranks.size() - go.size()));
  if (static_cast<int>(whole) < LeastSlots(*gang.job)) return;
  for (const size_t rank : ThatCouldGo(gang, {}, {}).ranks) {
    if (gang.ranks.size() - go.size() == whole) break;
    if (MayStay(demand, gang.ranks[rank])) go.push_back(rank);
  }
  Drop(gang, std::move(go));
  Decide(gang, false, kAskedForLayout);
}

// The slots of gangs that are still leaving.
void Elastic::KeepForResizes(const Cluster& cluster) {
  for (const RunningJob& running : cluster.running) {
    if (IsResizing(*running.job)) slots_.Take(running.job->resize->ranks);
  }
}

// What of the kept slots has gone meanwhile, with their node perhaps, is done without; if too few
// are left, or their nodes have registered anew and no longer compute alike, the job waits as any
// other.
void Elastic::PlaceResized(const Cluster& cluster) {
  for (const JobRecord* job : cluster.resized) {
    const SlotDemand demand = slots_.DemandOf(*job);
    std::vector<Placement::Rank> ranks;
    for (const Placement::Rank& rank : job->resize->ranks) {
      const bool free = std::all_of(rank.slots.begin(), rank.slots.end(),
                                    [&](int slot) { return slots_.IsFree(rank.node, slot); });
      const bool more = static_cast<int>(ranks.size()) < job->max_slots;
      // What was asked for since the resize was decided may need larger slots.
      const bool holds = job->layout == job->resize->layout || MayStay(demand, rank);
      if (free && more && holds) ranks.push_back(rank);
    }
    const size_t left = ranks.size();
    Arrange(*job, ranks);
    if (static_cast<int>(ranks.size()) < LeastSlots(*job)) continue;
    if (!slots_.MayShare(demand, ranks)) continue;
    Reason reason = job->reason;
    if (left < job->resize->ranks.size()) {
      absl::StrAppend(
          &reason.message, "; of these slots ", left, " are left",
          ranks.size() < left ? absl::StrCat(", of which it takes ", ranks.size()) : "");
    }
    slots_.Take(ranks);
    ledger_.Take(*job, SlotsIn(ranks));
    placed_.insert(job->uid);
    pass_.decisions.placements.push_back({.job_uid = job->uid,
                                          .job_version = job->version,
                                          .ranks = std::move(ranks),
                                          .reason = std::move(reason)});
  }
}

void Elastic::FindGangs(const Cluster& cluster) {
  std::map<std::string, size_t> decided;  // by uid: which resize of the pass
  for (size_t i = 0; i < pass_.decisions.resizes.size(); ++i) {
    decided[pass_.decisions.resizes[i].job_uid] = i;
  }
  std::set<std::string> leaving;
  for (const Suspension& suspension : pass_.decisions.suspensions) {
    leaving.insert(suspension.job_uid);
  }
  for (const auto& [job, attempt] : cluster.elastic) {
    if (job->state != JobState::kRunning || AnyOver(*attempt) || leaving.count(job->uid) > 0) {
      continue;
    }
    Gang& gang =
        gangs_.emplace_back(Gang{.job = job, .attempt = attempt, .ranks = SlotsOf(*attempt)});
    const auto known = decided.find(job->uid);
    if (known == decided.end()) continue;
    gang.decision = known->second;
    gang.ranks = pass_.decisions.resizes[known->second].ranks;
  }
  std::sort(gangs_.begin(), gangs_.end(),
            [](const Gang& a, const Gang& b) { return RunsBefore(*a.job, *b.job); });
}

void Elastic::Took(const JobRecord& job, const std::vector<Placement::Rank>& ranks) {
  if (ahead_.has_value()) ahead_->Take(ranks);
  if (static_cast<int>(ranks.size()) < job.max_slots) {
    starts_.push_back({pass_.decisions.placements.size() - 1, &job});
  }
}

void Elastic::Decide(Gang& gang, bool grows, std::string why) {
  std::vector<Resize>& resizes = pass_.decisions.resizes;
  if (!gang.decision.has_value()) {
    gang.decision = resizes.size();
    resizes.emplace_back();
  }
  KeepGroupsTogether(gang.ranks, gang.job->group_ranks);
  resizes[*gang.decision] = {
      .job_uid = gang.job->uid,
      .job_version = gang.job->version,
      .ranks = gang.ranks,
      .reason = {reason::kResizing, absl::StrCat(Change(*gang.attempt, gang.ranks.size()), why)},
      .grace = options_.drain_grace,
      .grows = grows};
}

int Elastic::MostOf(const Gang& gang) const {
  const int left = ledger_.Left(*gang.job);
  return left == INT_MAX ? INT_MAX : SlotsIn(SlotsOf(*gang.attempt)) + left;
}

void Elastic::GiveOut() {
  pass_.spare.emplace();
  for (const Start& start : starts_) {
    Placement& placement = pass_.decisions.placements[start.placement];
    const SlotDemand demand = slots_.DemandOf(*start.job);
    const size_t has = placement.ranks.size();
    const int most =
        std::min(start.job->max_slots - static_cast<int>(has), ledger_.Left(*start.job));
    std::vector<Placement::Rank> more = slots_.FindMore(demand, placement.ranks, most);
    more.resize(std::max(has, WholeSteps(*start.job, has + more.size())) - has);
    if (more.empty()) continue;
    slots_.Take(more);
    ledger_.Take(*start.job, SlotsIn(more));
    placement.ranks.insert(placement.ranks.end(), more.begin(), more.end());
    GroupByNode(placement.ranks);
    KeepGroupsTogether(placement.ranks, start.job->group_ranks);
    placement.reason = ReasonForPlacement(placement.ranks, *start.job);
  }
  for (Gang& gang : gangs_) Grow(gang);
}

void Elastic::Grow(Gang& gang) {
  const JobRecord& job = *gang.job;
  if (gang.decision.has_value()) return;
  const SlotDemand demand = slots_.DemandOf(job);
  std::vector<Placement::Rank> ranks = gang.ranks;  // that it would have
  const bool laid_out = IsLaidOut(gang);
  if (!laid_out) {
    std::erase_if(ranks, [&](const Placement::Rank& rank) { return !MayStay(demand, rank); });
  }
  const int has = static_cast<int>(ranks.size());
  if (has >= job.max_slots) return;
  const SlotTable::Counts counts = slots_.CountIn(demand, slots_.PoolOf(demand, ranks));
  const int within =
      std::clamp(has + counts.free - counts.kept, 0, std::min(job.max_slots, MostOf(gang)));
  const int could_have = static_cast<int>(WholeSteps(job, static_cast<size_t>(within)));
  const bool below = has < job.min_slots;  // a user has asked for more
  const int takes = std::max(UsefulSlots(job, could_have), std::min(could_have, job.min_slots));
  if (below && could_have < job.min_slots) return MoveWhole(gang, demand);
  if (takes <= has) return;
  if (!below) {
    pass_.spare->push_back(job.uid);
    const absl::Time ready = MayGrowFrom(job, *gang.attempt, now_, options_);
    if (ready > now_) {
      pass_.next = std::min(pass_.next, ready);
      return;
    }
  }
  const std::vector<Placement::Rank> more = slots_.FindMore(demand, ranks, takes - has);
  slots_.Take(more);
  ledger_.Take(job, has + SlotsIn(more) - SlotsIn(SlotsOf(*gang.attempt)));
  ranks.insert(ranks.end(), more.begin(), more.end());
  GroupByNode(ranks);
  gang.ranks = std::move(ranks);
  Decide(gang, !below,
         !laid_out ? kAskedForLayout
         : below   ? absl::StrCat("it was asked to take at least ", job.min_slots)
                   : absl::StrCat("no waiting job could use ", takes - has, " more"));
}

// What a user asks for may be there only among slots that do not compute as those of the gang, or
// are larger.
void Elastic::MoveWhole(Gang& gang, const SlotDemand& demand) {
  if (demand.count > MostOf(gang)) return;
  std::optional<std::vector<Placement::Rank>> ranks = slots_.Find(demand);
  if (!ranks.has_value()) return;
  slots_.Take(*ranks);
  ledger_.Take(*gang.job, SlotsIn(*ranks) - SlotsIn(SlotsOf(*gang.attempt)));
  gang.ranks = *std::move(ranks);
  Decide(gang, false,
         !IsLaidOut(gang)
             ? kAskedForLayout
             : absl::StrCat("it was asked to take at least ", demand.count,
                            ", and there are not so many that compute as those that it had"));
}

absl::Time MayGrowFrom(const JobRecord& job, const AttemptRecord& attempt, absl::Time now,
                       const PlannerOptions& options) {
  if (attempt.spare_since == absl::InfiniteFuture()) return absl::InfiniteFuture();
  const absl::Duration start =
      std::clamp(job.update_time - attempt.create_time, absl::ZeroDuration(), kLongestStart);
  absl::Time from = std::max(attempt.spare_since + options.grow_after,
                             job.update_time + std::max(options.grow_after, kRunOverStart * start));
  const std::vector<absl::Time> growths = GrowthsSince(job, now);
  if (static_cast<int>(growths.size()) >= options.most_growths) {
    from = std::max(from, growths[growths.size() - options.most_growths] + kGrowthsCountFor);
  }
  return from;
}

}  // namespace trainyard
