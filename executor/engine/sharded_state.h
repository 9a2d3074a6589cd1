#pragma once

// The optimizer's state, of which every rank has a share, read as a whole by the one that writes
// checkpoints.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "executor/engine/gang.h"
#include "executor/engine/session.h"

namespace trainyard::engine {

// Rank 0 reads, while the others serve, piece by piece: nobody holds more than a piece of what is
// not its own. For one thread at a time. Failures of others have the fault kGang. Who serves waits
// for rank 0 as long as its process lives: it may wait for a disk, or for its lease.
class ShardedState {
 public:
  // `session`, of a sharded plan, and what `gang` stands for must outlive it.
  ShardedState(Session& session, const Gang& gang);

  // Rank 0: the state of kind `kind` of the elements from `first` on, all of one parameter.
  absl::Status Read(size_t kind, int64_t first, absl::Span<float> to);

  // Rank 0: lets Serve return everywhere.
  absl::Status End();

  // The other ranks: hands out what Read asks for, until End.
  absl::Status Serve();

 private:
  // Of rank 0: does not wait for ever for a rank that hangs.
  absl::Status ExchangeSoon(absl::Span<const Transfer> transfers);
  absl::Status ReadOwn(size_t kind, int64_t first, absl::Span<float> to);

  Session& session_;
  const Gang gang_;
  const std::vector<plan::RankSlice> slices_;
};

// Reads the same from a checkpoint.
Snapshot::ReadState StateOf(const Checkpoint& checkpoint, const plan::Plan& plan);

// Reads this rank's share of the optimizer's state of `checkpoint` into the session's arena.
absl::Status RestoreShare(const Checkpoint& checkpoint, Session& session);

}  // namespace trainyard::engine
