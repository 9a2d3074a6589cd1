#pragma once

#include <functional>
#include <map>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace trainyard {

// Asks running calls to end early. Once requested, a stop stays requested. Thread-safe; outlives
// every call that holds it.
class Stop {
 public:
  void Request() {
    absl::MutexLock lock(&mu_);
    requested_ = true;
    for (auto& [id, action] : actions_) action();
  }

  bool requested() const {
    absl::MutexLock lock(&mu_);
    return requested_;
  }

  // Waits at most `d`; true once a stop was requested.
  bool WaitFor(absl::Duration d) const {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&requested_), d);
  }

  // Runs `action` when a stop is requested, at once if it already was, while this object lives. The
  // action must not call Stop.
  class Hook {
   public:
    Hook(Stop& stop, std::function<void()> action) : stop_(stop) {
      absl::MutexLock lock(&stop_.mu_);
      if (stop_.requested_) action();
      id_ = stop_.next_id_++;
      stop_.actions_.emplace(id_, std::move(action));
    }
    ~Hook() {
      absl::MutexLock lock(&stop_.mu_);
      stop_.actions_.erase(id_);
    }
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;

   private:
    Stop& stop_;
    int id_ = 0;
  };

 private:
  mutable absl::Mutex mu_;
  bool requested_ ABSL_GUARDED_BY(mu_) = false;
  int next_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int, std::function<void()>> actions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
