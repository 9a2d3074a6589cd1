#pragma once

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/wakeups.h"

namespace trainyard {

// Wake-ups within one process: subscribers are called on the thread that wakes, before Wake
// returns. The fake store needs nothing else; PostgresWakeups uses it for the subscribers of its
// own process. A subscriber must not call Wake from `wake`: it would wait for its own lock.
class LocalWakeups : public Wakeups {
 public:
  void Wake(const std::string& topic) override;
  int64_t Subscribe(std::function<void(const std::string& topic)> wake) override;
  void Unsubscribe(int64_t id) override;

 private:
  // Shared with a Wake under way on another thread, which may outlast Unsubscribe's erasure.
  struct Subscriber {
    absl::Mutex mu;
    std::function<void(const std::string&)> wake ABSL_GUARDED_BY(mu);  // empty once unsubscribed
  };

  absl::Mutex mu_;
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::shared_ptr<Subscriber>> subscribers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
