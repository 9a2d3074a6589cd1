#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "executor/run/run_directory.h"
#include "storage/base/clock.h"

namespace trainyard::worker {

// Ends the process with kExitFenced, without a word, once the lease has passed or the run directory
// is gone: another attempt may be running already. Looks ten times a second on a thread of its own.
class LeaseWatchdog {
 public:
  // kNotFound, kDataLoss: there is no lease.
  static absl::StatusOr<std::unique_ptr<LeaseWatchdog>> Start(const run::RunDirectory& directory,
                                                              Clock& clock);
  ~LeaseWatchdog();

  // Whether checkpoints may be made visible or removed now. Thread-safe.
  bool HasRight() const { return clock_.SinceBoot() < lease_.Right(); }

 private:
  LeaseWatchdog(run::RunDirectory directory, run::LeaseFile lease, Clock& clock);
  void Run();

  const run::RunDirectory directory_;
  const run::LeaseFile lease_;
  Clock& clock_;
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard::worker
