#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/clock.h"
#include "storage/token_store.h"

namespace trainyard {

struct CallerLimitOptions {
  int submissions_per_minute = 0;  // of jobs; 0: any number
  int most_streams = 0;            // open at a time; 0: any number
};

// What one caller, a principal in one project, may do on this server, whatever others do. Kept in
// memory: each server counts for itself. Thread-safe.
class CallerLimits {
 public:
  CallerLimits(const CallerLimitOptions& options, Clock& clock)
      : options_(options), clock_(clock) {}

  // The caller submits so many jobs, now. Zero: it may. Else it may once so much time has passed;
  // nothing was counted. A caller that was quiet for a minute may submit as much as in one at once,
  // and a batch that is larger than what is left once, which is then made up for.
  absl::Duration TakeSubmissions(const Principal& caller, int jobs);

  // The caller opens a stream, which counts until what is returned is gone. kResourceExhausted: it
  // has as many as it may. It must not outlive this.
  absl::StatusOr<std::shared_ptr<void>> TakeStream(const Principal& caller);

 private:
  struct Bucket {
    double left = 0;  // jobs that may be submitted now; negative after a large batch
    absl::Duration at;
  };

  const CallerLimitOptions options_;
  Clock& clock_;
  absl::Mutex mu_;
  std::map<std::string, Bucket> buckets_ ABSL_GUARDED_BY(mu_);  // but for full ones
  // So many callers are remembered before those whose minute is over are forgotten; twice as many
  // as were left then, so that a look at all of them is seldom.
  static constexpr size_t kManyCallers = 1024;
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = kManyCallers;
  std::map<std::string, int> streams_ ABSL_GUARDED_BY(mu_);  // no zeros
};

}  // namespace trainyard
