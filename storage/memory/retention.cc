#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/time/civil_time.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

absl::StatusOr<Retention> MemoryStores::GetRetention() {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  return retention_;
}

absl::Status MemoryStores::SetRetention(const Retention& retention) {
  TY_RETURN_IF_ERROR(Available());
  TY_RETURN_IF_ERROR(CheckRetention(retention));
  absl::MutexLock lock(&mu_);
  retention_ = retention;
  return absl::OkStatus();
}

absl::StatusOr<Aged> MemoryStores::Age() {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  Aged aged;
  const absl::Time latest = Now() - retention_.ended_jobs;
  struct Month {
    std::vector<std::string> uids;
    bool all_ended = true;
  };
  std::map<absl::CivilMonth, Month> months;
  for (const auto& [uid, entry] : by_uid_) {
    Month& month = months[absl::ToCivilMonth(entry.job.create_time, absl::UTCTimeZone())];
    month.uids.push_back(uid);
    month.all_ended &= IsTerminal(entry.job.state) && entry.job.end_time <= latest;
  }
  for (const auto& [month, jobs] : months) {
    const bool over = absl::FromCivil(month + 1, absl::UTCTimeZone()) <= latest && jobs.all_ended;
    if (!over) continue;
    aged.months += 1;
    aged.jobs += static_cast<int>(jobs.uids.size());
    for (const std::string& uid : jobs.uids) Forget(uid);
  }
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const NodeRecord& node = it->second;
    const auto held = held_slots_.lower_bound({node.name, 0});
    const bool free = held == held_slots_.end() || held->first.first != node.name;
    const bool gone = !node.reachable && node.lease_end <= Now() - retention_.gone_nodes && free;
    aged.nodes += gone;
    if (gone) {
      std::set<RankId> lost;
      for (const LostRank& rank : node.lost_ranks) lost.insert(rank.id);
      ProveLostGone(node.name, lost);
    }
    it = gone ? nodes_.erase(it) : std::next(it);
  }
  return aged;
}

}  // namespace trainyard
