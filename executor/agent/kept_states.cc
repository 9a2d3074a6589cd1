#include "executor/agent/kept_states.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {

void KeptStates::Keep(const v1::RankKey& rank, FileDescriptor memory, absl::Duration now) {
  struct stat info {};
  if (!memory.valid() || fstat(memory.get(), &info) != 0 || info.st_size == 0) return;
  Kept& kept = by_job_[rank.job_uid()];
  if (kept.attempt > rank.attempt()) return;
  kept = {.attempt = rank.attempt(), .memory = std::move(memory), .since = now};
}

std::string KeptStates::PathTo(const std::string& job_uid, int64_t attempt) const {
  const auto found = by_job_.find(job_uid);
  if (found == by_job_.end() || found->second.attempt != attempt) return "";
  return absl::StrCat("/proc/", getpid(), "/fd/", found->second.memory.get());
}

void KeptStates::AttemptTrains(const std::string& job_uid, int64_t attempt) {
  const auto found = by_job_.find(job_uid);
  if (found != by_job_.end() && found->second.attempt < attempt) by_job_.erase(found);
}

void KeptStates::DropOld(absl::Duration now) {
  std::erase_if(by_job_, [&](const auto& entry) { return now - entry.second.since > kPatience; });
}

}  // namespace trainyard
