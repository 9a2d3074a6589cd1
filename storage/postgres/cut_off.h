#pragma once

#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/base/file.h"

namespace trainyard::postgres {

// Ends what waits on a socket for too long. libpq waits without a bound for the answer to a
// statement, and a server that is frozen, or behind a network that swallows everything, never
// gives one; keepalives and tcp_user_timeout do not help, because its kernel still acknowledges.
// Shutting the socket down wakes whoever waits on it, on any platform of libpq's and through TLS,
// and libpq then reports a lost connection. Time is counted since boot (Clock::SinceBoot), so that
// a clock that is set moves no deadline. Thread-safe; one thread.
class CutOffs {
 public:
  CutOffs();
  ~CutOffs();
  CutOffs(const CutOffs&) = delete;
  CutOffs& operator=(const CutOffs&) = delete;

  // Shuts `socket` down at `deadline` unless it is destroyed before. The descriptor must stay open
  // until then, so it is one that libpq does not close: a duplicate.
  class Guard {
   public:
    Guard(CutOffs& owner, int socket, absl::Duration deadline);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    bool fired() const;  // the socket was shut down

   private:
    friend class CutOffs;
    CutOffs& owner_;
    const int socket_;
    std::multimap<absl::Duration, Guard*>::iterator place_;  // valid unless it fired; owner_.mu_
    bool fired_ = false;                                     // owner_.mu_
  };

 private:
  void Run();

  // Sleeps until `deadline`, or until earlier_ is written. Does not use the timed wait of a mutex,
  // which counts on the wall clock.
  void SleepUntil(absl::Duration deadline);

  // Eventfd: written for a deadline before looks_at_, and at the end.
  const FileDescriptor earlier_;
  absl::Mutex mu_;
  std::multimap<absl::Duration, Guard*> guards_ ABSL_GUARDED_BY(mu_);
  // When the thread looks next by itself; it may be for the deadline of a guard that is gone.
  absl::Duration looks_at_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard::postgres
