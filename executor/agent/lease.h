#pragma once

// The agent's right to run what it runs, on Clock::SinceBoot. Pure; the loop asks it what holds.

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

class Lease {
 public:
  // A restarted agent: its workers hold leases until `until`, given by an earlier process.
  void Inherit(absl::Duration until);

  // A session began. Registering renews the lease as a heartbeat does.
  void Begin(const v1::Welcome& terms, absl::Duration register_sent);

  // A heartbeat is about to be sent; returns its id.
  int64_t Beat(absl::Duration now);

  // The server renewed the lease for the heartbeat `id`. Unknown ids change nothing.
  void Acknowledge(int64_t id);

  // Until when workers may run by themselves: what their lease files say.
  absl::Duration until() const { return until_; }

  // When the agent must kill its workers: earlier than `until`, and counted from the *sending* of
  // the newest acknowledged heartbeat, since nobody knows how long the answer was on its way.
  absl::Duration fence_at() const { return fence_at_; }

  bool HoldsAt(absl::Duration now) const { return now < fence_at_; }

  absl::Duration heartbeat_interval() const { return heartbeat_; }

 private:
  void RenewFrom(absl::Duration sent);

  absl::Duration heartbeat_ = absl::Seconds(2);
  absl::Duration lease_ = absl::Seconds(10);
  absl::Duration self_fence_ = absl::Seconds(8);
  absl::Duration until_ = absl::ZeroDuration();
  absl::Duration fence_at_ = absl::ZeroDuration();
  int64_t next_id_ = 1;
  std::map<int64_t, absl::Duration> sent_;  // heartbeats without an answer
};

}  // namespace trainyard
