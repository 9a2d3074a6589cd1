#pragma once

// Workers that wait with everything loaded, so that a placed rank makes its first step at once.
//
// A waiting worker has a folder of its own, {state}/standby/{id}/, with its log. Taking it over
// moves the folder to {state}/ranks/{name}/, which is atomic, and then tells it through its stdin
// what to run. One that is never told anything reads the end of its stdin when the agent dies, and
// leaves. Every rank starts this way; without a warm worker one is started cold and told at once.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "executor/agent/process.h"
#include "storage/base/file.h"

namespace trainyard {

struct WaitingWorker {
  Process process;
  FileDescriptor pipe;  // its stdin
  std::string folder;
};

// Not thread-safe.
class WarmWorkers {
 public:
  // Removes what an earlier agent left in `folder`.
  WarmWorkers(std::string worker, std::string folder, int count);

  // The destructor closes the pipes: waiting workers leave by themselves.
  ~WarmWorkers();

  // A warm worker, or a new one.
  absl::StatusOr<WaitingWorker> Take();

  // Starts what is missing and drops what died; one that dies is replaced after a growing pause.
  // Call at least when `NextChange` has come or a descriptor of `Pidfds` became readable.
  void Tend(absl::Duration now);

  absl::Duration NextChange() const { return not_before_; }
  std::vector<int> Pidfds() const;
  std::vector<pid_t> Pids() const;

  // Kills all and waits until they are gone: they do nothing worth keeping.
  void KillAll();

 private:
  absl::StatusOr<WaitingWorker> Start();
  void DropDead(absl::Duration now);

  const std::string worker_;
  const std::string folder_;
  const size_t count_;
  std::vector<WaitingWorker> waiting_;
  std::vector<WaitingWorker> leaving_;  // died; not proven gone yet
  absl::Duration not_before_ = absl::ZeroDuration();
  absl::Duration pause_ = absl::ZeroDuration();
  absl::Duration newest_start_ = absl::ZeroDuration();
};

// The environment of a worker: what it needs of ours, how long its threads spin
// (executor/run/spin.h) unless ours says so, and nothing else.
std::vector<std::string> WorkerEnvironment(const char* const* ours);

}  // namespace trainyard
