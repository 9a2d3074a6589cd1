#pragma once

// The optimizer's state, and where they are sharded the parameters, of which every rank has a
// share, read as a whole by the one that writes checkpoints.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "executor/engine/gang.h"
#include "executor/engine/session.h"
#include "executor/engine/state_exchange.h"

namespace trainyard::engine {

// As StateExchange, of which each rank has its slices.
class ShardedState {
 public:
  // `session`, of a sharded plan, and what `gang` stands for must outlive it. `ranks`: which of the
  // ranks of the plan are left and make up `gang`, in its order; empty: all of them.
  ShardedState(Session& session, const Gang& gang, const std::vector<int64_t>& ranks = {});

  // Rank 0: what Snapshot calls `what`, of the elements from `first` on, all of one parameter.
  absl::Status Read(int64_t what, int64_t first, absl::Span<float> to);
  absl::Status End() { return exchange_.End(); }

  // The other ranks.
  absl::Status Serve() { return exchange_.Serve(); }

 private:
  absl::Status ReadOwn(const StateRequest& request, absl::Span<float> to);

  Session& session_;
  const std::vector<plan::OwnedRun> owned_;
  const std::vector<plan::RankSlice> slices_;
  StateExchange exchange_;
};

// Reads this rank's share of `checkpoint` into the session's arena.
absl::Status RestoreShare(const Checkpoint& checkpoint, Session& session);

}  // namespace trainyard::engine
