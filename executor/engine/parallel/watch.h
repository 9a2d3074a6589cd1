#pragma once

// Watches over the other ranks of a gang while they exchange bytes, or do something else.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/engine/parallel/control_link.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// What Watch needs to know of another rank.
struct WatchedRank {
  std::string name;                   // "rank 2 (10.0.0.3:7011)"
  std::unique_ptr<ControlLink> link;  // null for this rank itself
  bool left = false;                  // it has said goodbye already
};

// Where a rank is in the sequence of its calls, which each heartbeat tells the others.
struct Whereabouts {
  uint64_t calls = 0;  // that it has begun so far; 0: none
  Collective last = Collective::kExchange;
  bool inside = false;  // the last one has not returned yet
};
// "in all-gather 12", "after barrier 3", "before its first collective".
std::string Describe(const Whereabouts& whereabouts);

// A thread that tells the other ranks each second that this one is alive, and notices when one of
// them is not: its connection ends (within milliseconds of the end of its process), or says nothing
// for `silence`. Time in which this process itself did not run is nobody's silence. Whoever fails
// first, here or elsewhere, tells all others, so that every rank names the same cause. Thread-safe.
class Watch {
 public:
  // `ranks` in the order of ranks. `doorbell`, which must outlive this object, is rung when
  // failed() or left() changes.
  Watch(std::vector<WatchedRank> ranks, absl::Duration silence, int doorbell);
  // Says goodbye to the others, for at most a second.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Makes `why` the failure of this rank, unless there is one already, and tells the others.
  // Returns the failure.
  absl::Status Fail(absl::Status why);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  absl::Status failure() const;  // OK unless failed()

  // Of this rank, for the heartbeats to come.
  void SetWhereabouts(const Whereabouts& mine);
  // Of another rank, by its last heartbeat, which is a second old at most unless it is silent.
  Whereabouts whereabouts(int rank) const;

  // Rank `rank` has ended in good order. What it sent before can still be received.
  bool left(int rank) const { return left_[rank].load(std::memory_order_acquire); }

 private:
  using Time = std::chrono::steady_clock::time_point;

  void Run();
  void WaitForNews(Time until);
  void FailLocked(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReadLocked(size_t rank, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void JudgeSilenceLocked(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SayGoodbye();

  const absl::Duration silence_;
  const std::chrono::nanoseconds heartbeat_;
  const int doorbell_;
  FileDescriptor wake_;  // wakes the thread
  std::atomic<bool> failed_ = false;
  std::vector<std::atomic<bool>> left_;
  std::atomic<uint64_t> mine_ = 0;  // packed Whereabouts
  mutable absl::Mutex mu_;
  std::vector<WatchedRank> ranks_ ABSL_GUARDED_BY(mu_);
  std::vector<Time> heard_ ABSL_GUARDED_BY(mu_);
  std::vector<Whereabouts> whereabouts_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: uses the others
};

}  // namespace trainyard::engine
