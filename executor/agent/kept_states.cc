#include "executor/agent/kept_states.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/run/run_directory.h"

namespace trainyard {

void KeptStates::Keep(const v1::RankKey& rank, FileDescriptor memory, int64_t step,
                      absl::Duration now) {
  struct stat info {};
  if (!memory.valid() || fstat(memory.get(), &info) != 0 || info.st_size == 0) return;
  Kept& kept = by_job_[rank.job_uid()];
  if (kept.attempt > rank.attempt()) return;
  if (kept.attempt == rank.attempt() && kept.step > step) return;
  kept = {.attempt = rank.attempt(),
          .memory = std::move(memory),
          .step = step,
          .since = now,
          .left = true};
}

FileDescriptor KeptStates::FileOf(const std::string& job_uid, int64_t attempt, absl::Duration now) {
  Kept& kept = by_job_[job_uid];
  if (kept.attempt != attempt || !kept.memory.valid()) {
    kept = {.attempt = attempt,
            .memory = FileDescriptor(memfd_create(run::kStateFileName, MFD_CLOEXEC)),
            .since = now};
  }
  // Opened anew: with a place in the file of its own, and to be read alone where it is whole.
  // Another user than this one's cannot open it in another way then.
  fchmod(kept.memory.get(), 0600);
  const std::string path = absl::StrCat("/proc/self/fd/", kept.memory.get());
  return FileDescriptor(open(path.c_str(), (kept.left ? O_RDONLY : O_RDWR) | O_CLOEXEC));
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
