#include <algorithm>
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
  std::map<absl::CivilMonth, std::vector<std::string>> months;
  for (const auto& [uid, entry] : by_uid_) {
    months[absl::ToCivilMonth(entry.job.create_time, absl::UTCTimeZone())].push_back(uid);
  }
  const absl::Time latest = Now() - retention_.ended_jobs;
  for (const auto& [month, uids] : months) {
    const bool over = absl::FromCivil(month + 1, absl::UTCTimeZone()) <= latest &&
                      std::all_of(uids.begin(), uids.end(), [&](const std::string& uid) {
                        const JobRecord& job = by_uid_.at(uid).job;
                        return IsTerminal(job.state) && job.end_time <= latest;
                      });
    if (!over) continue;
    aged.months += 1;
    aged.jobs += static_cast<int>(uids.size());
    for (const std::string& uid : uids) Forget(uid);
  }
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const NodeRecord& node = it->second;
    const auto held = held_slots_.lower_bound({node.name, 0});
    const bool free = held == held_slots_.end() || held->first.first != node.name;
    const bool gone = !node.reachable && node.lease_end <= Now() - retention_.gone_nodes && free;
    aged.nodes += gone;
    it = gone ? nodes_.erase(it) : std::next(it);
  }
  return aged;
}

}  // namespace trainyard
