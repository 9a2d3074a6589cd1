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

int LeastOf(const JobRecord& job) { return std::max(1, job.min_slots); }

// Of so many slots, those that are whole steps of the job.
size_t WholeSteps(const JobRecord& job, size_t slots) {
  const auto step = static_cast<size_t>(std::max(1, job.slot_step));
  return slots / step * step;
}

// How many slots it gives up so that so many become free.
int GivesFor(const JobRecord& job, int slots) {
  const int step = std::max(1, job.slot_step);
  return (slots + step - 1) / step * step;
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
  if (static_cast<int>(left.size()) < LeastOf(job)) return std::nullopt;
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
  if (static_cast<int>(whole) < LeastOf(*gang.job)) return;
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
    if (static_cast<int>(ranks.size()) < LeastOf(*job)) continue;
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

void Elastic::LookAhead(const Cluster& cluster) {
  const bool any = std::any_of(gangs_.begin(), gangs_.end(), [](const Gang& gang) {
    return static_cast<int>(gang.ranks.size()) > LeastOf(*gang.job);
  });
  if (!any) return;
  ahead_ = slots_;
  for (const auto& [job, attempt] : cluster.running) {
    const bool leaves = job->state == JobState::kSuspending || job->state == JobState::kCancelling;
    if (!leaves || attempt == nullptr) continue;
    for (const RankRecord& rank : attempt->ranks) {
      if (IsOver(rank.state)) continue;
      for (const int slot : rank.slots) ahead_->SetTaken(rank.node, slot, false);
    }
    if (IsResizing(*job)) ahead_->Take(job->resize->ranks);
  }
  // Of gangs that leave a drained node, what they do not go on with.
  for (const Gang& gang : gangs_) {
    if (!gang.decision.has_value()) continue;
    for (const Placement::Rank& rank : SlotsOf(*gang.attempt)) {
      if (std::find(gang.ranks.begin(), gang.ranks.end(), rank) != gang.ranks.end()) continue;
      for (const int slot : rank.slots) ahead_->SetTaken(rank.node, slot, false);
    }
  }
}

void Elastic::Took(const JobRecord& job, const std::vector<Placement::Rank>& ranks) {
  if (ahead_.has_value()) ahead_->Take(ranks);
  if (static_cast<int>(ranks.size()) < job.max_slots) {
    starts_.push_back({pass_.decisions.placements.size() - 1, &job});
  }
}

bool Elastic::MakeRoom(const JobRecord& job) {
  if (!ahead_.has_value() || pass_.decisions.resizes.size() >= options_.most_placements) {
    return false;
  }
  const SlotDemand demand = ahead_->DemandOf(job);
  if (const auto ranks = ahead_->Find(demand); ranks.has_value()) {
    ahead_->Take(*ranks);
    return true;
  }
  const std::vector<SlotTable::Pool> pools = ahead_->PoolsFor(demand);
  const std::vector<SlotTable::Counts> counts = ahead_->CountEach(demand, pools);
  for (size_t i = 0; i < pools.size(); ++i) {
    if (MakeRoomIn(pools[i], counts[i], demand, job)) return true;
  }
  ahead_->Keep(demand);
  return false;
}

// Ranks of the gang, no more than it may lose. First those whose slots are in `pool` and serve
// `demand`, which all do if `pool` is empty; of these those whose slots are too small for what the
// job needs now, then those that are beyond the whole groups of
// their node, then those on the nodes where the gang has fewest. The node of its rank 0 stays if it
// can: the state is left in its memory, and need not be sent to another one.
Elastic::Gift Elastic::ThatCouldGo(Gang& gang, const SlotDemand& demand,
                                   const SlotTable::Pool& pool) const {
  std::map<std::string, int> on_node;
  std::vector<int> place;  // on its node, of each rank
  for (const Placement::Rank& rank : gang.ranks) place.push_back(on_node[rank.node]++);
  const int group = std::max(1, gang.job->group_ranks);
  Gift gift{.gang = &gang};
  std::vector<size_t>& ranks = gift.ranks;
  const SlotDemand own = slots_.DemandOf(*gang.job);
  std::vector<bool> serves, stays;
  for (size_t i = 0; i < gang.ranks.size(); ++i) {
    const Placement::Rank& rank = gang.ranks[i];
    serves.push_back(pool.empty() ||
                     std::all_of(rank.slots.begin(), rank.slots.end(), [&](int slot) {
                       return ahead_->Serves(demand, pool, rank.node, slot);
                     }));
    gift.serve += serves.back() ? 1 : 0;
    stays.push_back(MayStay(own, rank));
    ranks.push_back(i);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](size_t a, size_t b) {
    const std::string &of_a = gang.ranks[a].node, &of_b = gang.ranks[b].node;
    const int has_a = on_node[of_a], has_b = on_node[of_b];
    const bool whole_a = place[a] < has_a / group * group,
               whole_b = place[b] < has_b / group * group;
    const bool not_a = !serves[a], not_b = !serves[b];
    const bool stays_a = stays[a], stays_b = stays[b];
    const std::string& first = gang.attempt->ranks.front().node;
    const bool first_a = of_a == first, first_b = of_b == first;
    return std::tie(not_a, stays_a, whole_a, has_a, first_a, of_b, b) <
           std::tie(not_b, stays_b, whole_b, has_b, first_b, of_a, a);
  });
  const int surplus = static_cast<int>(gang.ranks.size()) - LeastOf(*gang.job);
  ranks.resize(std::max(0, surplus));
  gift.serve = std::min(gift.serve, static_cast<int>(ranks.size()));
  return gift;
}

// Takes from jobs that are resized anyway, then from those of the least priority, of these from
// whom gives up least that nobody asked for, because it gives whole groups, and then from whom has
// most to give: so few as can be are resized.
bool Elastic::MakeRoomIn(const SlotTable::Pool& pool, const SlotTable::Counts& counts,
                         const SlotDemand& demand, const JobRecord& job) {
  int missing = demand.count - (counts.free - counts.kept);
  if (counts.present < demand.count || missing <= 0) return false;
  std::vector<Gift> gifts;
  int offered = 0;
  for (Gang& gang : gangs_) {
    const bool has_more = static_cast<int>(gang.ranks.size()) > LeastOf(*gang.job);
    // Fewer slots would be slots in the new layout, which they do not hold.
    const bool could_not_go_on = !IsLaidOut(gang) && !gang.decision.has_value();
    if (!has_more || could_not_go_on || gang.job->priority > job.priority) continue;
    Gift gift = ThatCouldGo(gang, demand, pool);
    if (gift.serve == 0) continue;
    offered += gift.serve;
    gifts.push_back(std::move(gift));
  }
  if (offered < missing) return false;
  const int needed = missing;
  std::stable_sort(gifts.begin(), gifts.end(), [needed](const Gift& a, const Gift& b) {
    const auto key = [needed](const Gift& gift) {
      const int asked = std::min(gift.serve, needed);
      return std::make_tuple(!gift.gang->decision.has_value(), gift.gang->job->priority,
                             GivesFor(*gift.gang->job, asked) - asked, -gift.serve);
    };
    return key(a) < key(b);
  });
  for (Gift& gift : gifts) {
    if (missing <= 0) break;
    Gang& gang = *gift.gang;
    const int goes = GivesFor(*gang.job, std::min(gift.serve, missing));
    gift.ranks.resize(std::min(gift.ranks.size(), static_cast<size_t>(goes)));
    missing -= std::min(gift.serve, static_cast<int>(gift.ranks.size()));
    Drop(gang, std::move(gift.ranks));
    if (gang.first.empty()) {
      gang.first = absl::StrCat("job ", job.job_id, " of priority ", job.priority);
    } else {
      ++gang.others;
    }
    Decide(
        gang, false,
        absl::StrCat(gang.first, gang.others > 0 ? absl::StrCat(" and ", gang.others, " more wait")
                                                 : std::string(" waits")));
  }
  const auto ranks = ahead_->Find(demand);
  if (ranks.has_value()) ahead_->Take(*ranks);
  return true;
}

void Elastic::Drop(Gang& gang, std::vector<size_t> ranks) {
  std::sort(ranks.begin(), ranks.end(), std::greater<>());
  for (const size_t rank : ranks) {
    for (const int slot : gang.ranks[rank].slots) {
      if (ahead_.has_value()) ahead_->SetTaken(gang.ranks[rank].node, slot, false);
    }
    gang.ranks.erase(gang.ranks.begin() + static_cast<std::ptrdiff_t>(rank));
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
