#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/sizing/limits.h"
#include "server/sizing/sizer_process.h"

namespace trainyard {

// A few helpers of the same limits. Thread-safe.
class SizerLane {
 public:
  struct Options {
    std::string name;  // of the program
    int helpers = 1;
    bool keep = false;  // started before they are needed, and asked again; else one per question
    SizingLimits limits;
  };

  // `program` is open on the program and outlives the lane.
  SizerLane(const FileDescriptor& program, Options options);

  // Asks a helper, once one is free. kUnavailable: none became free before `until`, none can be
  // started, or the lane is stopped. An answer that takes longer than `until` is kOutOfTime, too.
  absl::StatusOr<SizerProcess::Outcome> Ask(const sizing::Question& question, SteadyTime until);

  // Ends all helpers, and questions under way as kUnavailable. Idempotent.
  void Stop();

  std::vector<pid_t> Pids() const;

  const SizingLimits& limits() const { return options_.limits; }

 private:
  using Process = std::unique_ptr<SizerProcess>;

  absl::StatusOr<SizerProcess*> Take(SteadyTime until);
  void GiveBack(SizerProcess* process, bool answered);
  absl::StatusOr<Process> Start() const {
    return SizerProcess::Start(program_, options_.name, options_.limits);
  }

  const FileDescriptor& program_;
  const Options options_;
  mutable absl::Mutex mu_;
  int free_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Process> idle_ ABSL_GUARDED_BY(mu_);
  std::vector<Process> busy_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
