#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/clock.h"

namespace trainyard {

// Asks this server's store at short intervals whether it is there, and tells when it has not
// answered for too long. One thread.
class StoreWatch {
 public:
  // After so long without an answer agents and watchers should leave this server: another one may
  // reach the store.
  static constexpr absl::Duration kMostSilence = absl::Seconds(3);

  // `probe` answers kUnavailable within its thread's CallLimit. `tell` is called on the watch's
  // thread, alternately with what is wrong and, once the store answers again, with OK.
  StoreWatch(std::function<absl::Status()> probe, Clock& clock,
             std::function<void(const absl::Status&)> tell);
  ~StoreWatch() { Stop(); }

  void Stop();  // idempotent

 private:
  void Run();
  bool StopsWithin(absl::Duration pause);

  const std::function<absl::Status()> probe_;
  Clock& clock_;
  const std::function<void(const absl::Status&)> tell_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard
