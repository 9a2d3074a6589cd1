// What running jobs give up for those that wait: slots, or a part of what their project may hold.

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/elastic.h"

namespace trainyard {
namespace {

// How many slots it gives up so that so many become free.
int GivesFor(const JobRecord& job, int slots) {
  const int step = std::max(1, job.slot_step);
  return (slots + step - 1) / step * step;
}

}  // namespace

// What gangs hold that are leaving, but for what their jobs go on with.
void Elastic::FindWhatLeaves(const Cluster& cluster) {
  for (const auto& [job, attempt] : cluster.running) {
    const bool leaves = job->state == JobState::kSuspending || job->state == JobState::kCancelling;
    if (!leaves || attempt == nullptr) continue;
    int slots = IsResizing(*job) ? -SlotsIn(job->resize->ranks) : 0;
    for (const RankRecord& rank : attempt->ranks) {
      if (rank.state != RankState::kGone) slots += static_cast<int>(rank.slots.size());
    }
    if (slots > 0) leaving_[job->project] += slots;
  }
}

void Elastic::LookAhead(const Cluster& cluster) {
  const bool any = std::any_of(gangs_.begin(), gangs_.end(), [](const Gang& gang) {
    return static_cast<int>(gang.ranks.size()) > LeastSlots(*gang.job);
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
  const int surplus = static_cast<int>(gang.ranks.size()) - LeastSlots(*gang.job);
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
    const bool has_more = static_cast<int>(gang.ranks.size()) > LeastSlots(*gang.job);
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
    DecideFor(gang, job);
  }
  const auto ranks = ahead_->Find(demand);
  if (ranks.has_value()) ahead_->Take(*ranks);
  return true;
}

// Likewise from whom it costs least, wherever the slots are: the limit counts them all.
bool Elastic::MakeRoomInLimit(const JobRecord& job, int missing) {
  if (pass_.decisions.resizes.size() >= options_.most_placements) return false;
  int& leaving = leaving_[job.project];
  int needed = missing - leaving;
  std::vector<Gift> gifts;
  int offered = 0;
  for (Gang& gang : gangs_) {
    const bool could_not_go_on = !IsLaidOut(gang) && !gang.decision.has_value();
    if (gang.job->project != job.project || gang.job->priority > job.priority || could_not_go_on) {
      continue;
    }
    Gift gift = ThatCouldGo(gang, {}, {});
    if (gift.ranks.empty()) continue;
    offered += static_cast<int>(gift.ranks.size());
    gifts.push_back(std::move(gift));
  }
  if (offered < needed) return false;
  std::stable_sort(gifts.begin(), gifts.end(), [](const Gift& a, const Gift& b) {
    const auto key = [](const Gift& gift) {
      return std::make_tuple(!gift.gang->decision.has_value(), gift.gang->job->priority,
                             -static_cast<int>(gift.ranks.size()));
    };
    return key(a) < key(b);
  });
  leaving = std::max(0, -needed);
  for (Gift& gift : gifts) {
    if (needed <= 0) break;
    Gang& gang = *gift.gang;
    const int most = static_cast<int>(gift.ranks.size());
    const int goes = std::min(most, GivesFor(*gang.job, std::min(most, needed)));
    gift.ranks.resize(static_cast<size_t>(goes));
    needed -= goes;
    Drop(gang, std::move(gift.ranks));
    DecideFor(gang, job);
  }
  leaving += std::max(0, -needed);
  return true;
}

void Elastic::DecideFor(Gang& gang, const JobRecord& job) {
  if (gang.first.empty()) {
    gang.first = absl::StrCat("job ", job.job_id, " of priority ", job.priority);
  } else {
    ++gang.others;
  }
  Decide(gang, false,
         absl::StrCat(gang.first, gang.others > 0 ? absl::StrCat(" and ", gang.others, " more wait")
                                                  : std::string(" waits")));
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

}  // namespace trainyard
