#pragma once

// What the ranks of a gang look up in tables of which each has some rows (plan::Plan::tables).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "executor/engine/gang.h"
#include "executor/engine/session.h"
#include "executor/plan/graph/plan.h"

namespace trainyard::engine {

// By the communicator of the gang, between hosts that reach the memory of the device. Every rank
// makes the same calls of Exchange in the same order.
class LookUps {
 public:
  // `session` and what `gang` stands for must outlive it.
  LookUps(Session& session, const Gang& gang);

  // The ids of all ranks go to all of them, then each row to those that look it up. `mine`: this
  // rank has a batch, whose ids lie where the plan says.
  absl::Status Exchange(const plan::LookUp& look_up, bool mine);

  // After an Exchange of a batch of this rank: puts the rows where the plan says.
  void Place(const plan::LookUp& look_up);

 private:
  absl::Status AskForRows(const plan::LookUp& look_up, bool mine);
  // The share that has row `id` of table `t`; -1: there is no such row.
  int64_t ShareWith(size_t t, int32_t id) const;
  // Which of the ranks that have that share sends its rows to `rank`: itself if it has them.
  int SourceFor(int64_t share, int64_t rank) const;
  // Row `id` of table `t`; null: this rank has it not.
  const float* Own(size_t t, int32_t id) const;

  Session& session_;
  const Gang gang_;
  int64_t width_ = 0;
  int64_t shares_ = 1;                            // of a table; several ranks may have the same
  std::vector<std::vector<int64_t>> first_rows_;  // by table, by share, and how many there are
  std::vector<const float*> own_;                 // by table: where the first row of this rank is
  std::vector<int32_t> ids_;                      // of all ranks, one rank behind the other
  std::vector<int> owners_;                       // by id of this rank: who sends its row
  std::vector<float> sent_, received_;            // by rank, in the order of the ids that name them
  std::vector<int64_t> received_from_;            // by rank: where its rows begin
};

// To be run once in a step, between its norm and its end: writes to Plan::row_ids the rows counted
// from the first that this rank has, and -1 in place of those that other ranks step.
kernels::Kernel OwnRowsAlone(Session& session);

}  // namespace trainyard::engine
