#include "executor/agent/kept_states.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {

void KeptStates::Keep(const v1::RankKey& rank, FileDescriptor memory, int64_t step,
                      absl::Duration now) {
  struct stat info {};
  if (!memory.valid() || fstat(memory.get(), &info) != 0 || info.st_size == 0) return;
  Kept& kept = by_job_[rank.job_uid()];
  if (kept.attempt > rank.attempt()) return;
  if (kept.attempt == rank.attempt() && kept.step > step) return;
  kept = {.attempt = rank.attempt(), .memory = std::move(memory), .step = step, .since = now};
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

void KeptStates::Free(const v1::LeftState& state) {
  const auto found = by_job_.find(state.job_uid());
  if (found != by_job_.end() && found->second.attempt == state.attempt()) by_job_.erase(found);
}

std::vector<v1::LeftState> KeptStates::All() const {
  std::vector<v1::LeftState> all;
  for (const auto& [job_uid, kept] : by_job_) {
    v1::LeftState& state = all.emplace_back();
    state.set_job_uid(job_uid);
    state.set_attempt(kept.attempt);
  }
  return all;
}

void KeptStates::DropOld(absl::Duration now) {
  std::erase_if(by_job_, [&](const auto& entry) { return now - entry.second.since > kPatience; });
}

}  // namespace trainyard
