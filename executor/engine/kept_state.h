#pragma once

// What an attempt leaves in memory for the next one: the newest state, as a packed checkpoint.
// Nothing is written to a disk. A gang that is resized leaves it together, on one of its nodes that
// the next attempt has, too; one that broke, on every node that is left or, if each rank has a
// share of it, on one of these (after_loss.cc).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/gang.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// Where an attempt before left its state.
struct StateInMemory {
  int64_t step = 0;
  // Opens the file on this node and gives it to the caller; an invalid descriptor if this node does
  // not have the state. Called at most once. Null means the same as an invalid descriptor.
  std::function<FileDescriptor()> take;
  int64_t room = 0;  // bytes of memory that this node has for it, if it comes from another one
  bool may_differ = false;  // nodes may each have left one by themselves (Parallel.second_owner)
};

// A file in memory that can take the state of this attempt.
struct RoomForState {
  int fd = -1;
  int64_t bytes = 0;   // at most
  bool stays = false;  // the next attempt has this node, too
  // The gang is broken, and each of its nodes keeps the state by itself: this rank if it has
  // `bytes` for it, or else perhaps another one of the node. Where each rank has a share of the
  // state, one rank keeps all of it.
  bool alone = false;
  // Then, once it is known: the ranks that are left, in order, this one among them.
  std::vector<int> survivors = {};
};

struct TakenState {
  std::optional<Checkpoint> checkpoint;  // on every rank, or on none
  std::string why_not;                   // why there is none
};

// Every rank of the gang calls it. From the first rank whose node has the state it goes to all
// nodes that do not have it, or have another one of this step, of each to one rank, in a binary
// tree; the other ranks of a node read what that one received. A failure is the gang's: all else
// means that there is no such state.
absl::StatusOr<TakenState> TakeState(const Gang& gang, const StateInMemory& state);

// The rank that is to keep the state: rank 0 if its node stays, or else that with most memory of
// those whose nodes stay. Every rank calls it.
struct Keeper {
  int rank = -1;      // -1: no node that stays has memory for it
  int64_t bytes = 0;  // that the state may have
};
absl::StatusOr<Keeper> FindKeeper(const Gang& gang, const std::optional<RoomForState>& room);

// Every rank calls it, after rank 0 has packed its state into `room`, as `packed` says: the state
// goes to `keeper`. Fails alike on all ranks, with the fault kGang if the gang did, and then no
// rank keeps anything.
absl::Status LeaveState(const Gang& gang, const std::optional<RoomForState>& room, int keeper,
                        const absl::Status& packed);

// What ranks tell each other before each step, as bits: what is to become of the gang.
inline constexpr uint8_t kStop = 1;         // no further step is begun
inline constexpr uint8_t kAskedToKeep = 4;  // the rank was told to leave, its state in memory
inline constexpr uint8_t kCanKeep = 8;      // and its node stays

// The bits of one rank. A rank that was told to stop stops the gang at once, unless the state is to
// stay in memory: then rank 0 does, once it was told so itself and somebody can keep the state, or
// once it is `impatient`. Their agents tell the ranks one after the other.
//   room: where this rank could keep it; nothing: it was not told to
//   before: the bits of all ranks from the previous round
uint8_t WishToLeave(bool leads, bool told_to_stop, const std::optional<RoomForState>& room,
                    uint8_t before, bool impatient);

}  // namespace trainyard::engine
