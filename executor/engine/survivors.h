#pragma once

// How the surviving ranks of a gang that broke bring the state together, where each has a share of
// it (Parallel.second_owner).

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/engine/gang.h"
#include "executor/engine/norm_across_ranks.h"
#include "executor/engine/session.h"
#include "executor/engine/sum_across_ranks.h"
#include "executor/plan/graph/shares.h"

namespace trainyard::engine {

// What one of them has.
struct Remains {
  int64_t steps = 0;       // that it has made
  int64_t can_finish = 0;  // 1: it can make the next one, too (Trainer::CanFinishStep)
  int64_t room = 0;        // bytes that the state may have in the memory of its node

  friend bool operator==(const Remains&, const Remains&) = default;
};

// What the survivors decide.
struct Salvage {
  int64_t step = 0;  // all of them are to have made
  int rank = 0;      // that leaves the state in the memory of its node

  friend bool operator==(const Salvage&, const Salvage&) = default;
};

// All survivors make the newest step that any of them has made. If one cannot, this fails and
// nothing is left. If all can make the next one, too, they do: a rank that is lost may have made
// it. The one with most room leaves the state; of several such ranks the one that has made most
// steps. Pure.
absl::StatusOr<Salvage> ChooseSalvage(const std::vector<Remains>& of_ranks);

// kInvalidArgument unless `ranks`, which rank `rank` of a gang of `size` was told are left, are
// some of that gang in order, and it is one of them.
absl::Status CheckSurvivors(const std::vector<int>& ranks, int rank, int size);

// What each of them has, on all of them.
absl::StatusOr<std::vector<Remains>> GatherRemains(const Gang& left, const Remains& mine);

// Every one of them makes the same calls in the same order. On hosts that reach the memory of the
// device. Failures have the fault kGang.
class Survivors {
 public:
  // ranks[i]: the number that rank i of `left` had in the gang that broke. `session` has the plan
  // of that gang. What `left` stands for must outlive it.
  Survivors(Session& session, const Gang& left, const std::vector<int64_t>& ranks);

  // kFailedPrecondition unless each part of the state has an owner among them.
  absl::Status CheckComplete() const;

  // Gives every survivor the sums of all leaves of the norm, which those a step behind lack.
  absl::Status ShareLeaves();

  // Each slice of the parameters goes from one of its owners to all, unless parameters are sharded.
  absl::Status GatherParameters();

 private:
  Session& session_;
  const Gang left_;
  const std::vector<plan::Bucket> buckets_, tables_;
};

}  // namespace trainyard::engine
