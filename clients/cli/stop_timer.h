#pragma once

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "clients/cpp/stop.h"

namespace trainyard::cli {

// Requests a stop after a while, unless it is destroyed before.
class StopTimer {
 public:
  StopTimer(Stop& stop, absl::Duration after)
      : thread_([this, &stop, after] {
          if (done_.WaitForNotificationWithTimeout(after)) return;
          fired_ = true;
          stop.Request();
        }) {}
  ~StopTimer() {
    done_.Notify();
    thread_.join();
  }

  bool fired() const { return fired_; }

 private:
  absl::Notification done_;
  std::atomic<bool> fired_ = false;
  std::thread thread_;
};

}  // namespace trainyard::cli
