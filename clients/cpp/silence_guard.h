#pragma once

// Includes gRPC: only for .cc files.

#include <grpcpp/client_context.h>

#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace trainyard {

// Cancels a stream on which nothing was received for `limit`: a server that is stopped (SIGSTOP)
// but not dead keeps its connection open.
class SilenceGuard {
 public:
  SilenceGuard(grpc::ClientContext& context, absl::Duration limit)
      : context_(context), limit_(limit), thread_([this] { Run(); }) {}
  ~SilenceGuard() {
    {
      absl::MutexLock lock(&mu_);
      done_ = true;
    }
    thread_.join();
  }

  void Heard() {
    absl::MutexLock lock(&mu_);
    ++heard_;
  }
  bool fired() {
    absl::MutexLock lock(&mu_);
    return fired_;
  }

 private:
  void Run() {
    absl::MutexLock lock(&mu_);
    while (!done_) {
      const int64_t before = heard_;
      const auto changed = [this, before] {
        mu_.AssertHeld();
        return done_ || heard_ != before;
      };
      if (mu_.AwaitWithTimeout(absl::Condition(&changed), limit_)) continue;
      fired_ = true;
      context_.TryCancel();
      return;
    }
  }

  grpc::ClientContext& context_;
  const absl::Duration limit_;
  absl::Mutex mu_;
  int64_t heard_ ABSL_GUARDED_BY(mu_) = 0;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  bool fired_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard
