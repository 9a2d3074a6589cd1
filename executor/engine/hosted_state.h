#pragma once

// What the ranks of a group host of a logical rank's shards, read as a whole by the one that writes
// checkpoints.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "executor/engine/groups.h"
#include "executor/engine/session.h"
#include "executor/engine/sharded_state.h"
#include "executor/engine/state_exchange.h"

namespace trainyard::engine {

// As StateExchange, of which each rank has the parameters that it hosts. Groups other than that of
// rank 0 have the same as it, or shares of the state, which its ranks then read for it.
class HostedState {
 public:
  // `session`, and what `groups` stands for, must outlive it; so must `shares`, among the ranks
  // that host the same: of a plan whose state is found by parameter, else null.
  HostedState(Session& session, const Groups& groups, ShardedState* shares = nullptr);

  // Rank 0: as Snapshot::ReadShard.
  absl::Status Read(int64_t what, size_t position, int64_t first, absl::Span<float> to);
  absl::Status End() { return exchange_.End(); }

  // The other ranks of its group.
  absl::Status Serve() { return exchange_.Serve(); }

 private:
  absl::Status ReadOwn(const StateRequest& request, absl::Span<float> to);

  Session& session_;
  ShardedState* const shares_;
  StateExchange exchange_;
};

}  // namespace trainyard::engine
