#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/retention_store.h"

namespace trainyard {

struct RetentionOptions {
  absl::Duration every = absl::Hours(1);
  absl::Duration after_failure = absl::Minutes(1);
};

// Makes the partitions of coming months and removes what is older than the store's retention says:
// at Start and from time to time. One thread. The store must outlive it.
class RetentionLoop {
 public:
  RetentionLoop(RetentionStore& store, RetentionOptions options)
      : store_(store), options_(options) {}
  ~RetentionLoop() { Stop(); }

  void Start();
  void Stop();  // after the step under way; idempotent

  // Does whatever is due, on the caller's thread, and returns what it removed. Ends early when
  // stopped.
  absl::StatusOr<Aged> Turn();

 private:
  void Run();
  bool stopping();

  RetentionStore& store_;
  const RetentionOptions options_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard
