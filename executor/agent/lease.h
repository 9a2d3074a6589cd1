#pragma once

// The agent's right to run its ranks, in times of Clock::SinceBoot. Pure: the agent's loop passes
// the time in.

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

class Lease {
 public:
  // Called when an agent adopts workers. The agent process before it let them live until `until`,
  // and until `fence_at` as long as an agent lives.
  void Inherit(absl::Duration until, absl::Duration fence_at);

  // A session began. Registering renews the lease as a heartbeat does.
  void Begin(const v1::Welcome& terms, absl::Duration register_sent);

  // A heartbeat is about to be sent; returns its id.
  int64_t Beat(absl::Duration now);

  int64_t last_beat() const { return next_id_ - 1; }  // the id of the newest one

  // The server renewed the lease for the heartbeat `id`. Unknown ids change nothing.
  void Acknowledge(int64_t id);

  // Until when workers may run by themselves: what their lease files say.
  absl::Duration until() const { return until_; }

  // Until when the lease certainly holds: earlier than `until`, and counted from the *sending* of
  // the newest acknowledged heartbeat, since nobody knows how long the answer was on its way.
  absl::Duration holds_until() const { return holds_until_; }
  bool HoldsAt(absl::Duration now) const { return now < holds_until_; }

  // When the agent must kill its workers. Until then they step on without a lease, as orphans: they
  // make nothing visible, and the server decides once it is heard of again. A server that says
  // nothing of orphans allows none.
  absl::Duration fence_at() const { return holds_until_ + orphan_limit_; }

  // Until when an agent that is alive `now` lets its workers run: one lease from now on, but not
  // past fence_at().
  absl::Duration LifeFrom(absl::Duration now) const {
    return std::max(until_, std::min(now + lease_, fence_at()));
  }

  absl::Duration heartbeat_interval() const { return heartbeat_; }

 private:
  void RenewFrom(absl::Duration sent);

  absl::Duration heartbeat_ = absl::Seconds(2);
  absl::Duration lease_ = absl::Seconds(10);
  absl::Duration self_fence_ = absl::Seconds(8);
  absl::Duration until_ = absl::ZeroDuration();
  absl::Duration orphan_limit_ = absl::ZeroDuration();
  absl::Duration holds_until_ = absl::ZeroDuration();
  int64_t next_id_ = 1;
  std::map<int64_t, absl::Duration> sent_;  // heartbeats without an answer
};

}  // namespace trainyard
