#pragma once

// What a rank computes that has one stage of a pipeline.

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/engine/session.h"
#include "executor/engine/shards_across_ranks.h"
#include "executor/engine/step_parts.h"
#include "executor/plan/graph/pipeline.h"
#include "kernels/device.h"

namespace trainyard::engine {

// Makes the passes of a step over several micro-batches at once, in the order of
// plan::ActionsOf. A neighbour that is not there yet is waited for; ShardsAcrossRanks says how
// long, and what becomes of it.
class Stage {
 public:
  // What goes around the passes over a micro-batch, by its number within the rank's step.
  struct Around {
    // Before its first pass: puts it where it is while it is in flight.
    std::function<absl::Status(int64_t micro_batch, const plan::Instance& place)> load;
    // Before a pass that other micro-batches came before: its StepState is put in place again.
    std::function<void(int64_t micro_batch)> resume;
    // Before and after its gradients of a chunk are added to what the rank has of these.
    using OfChunk = void(int64_t micro_batch, const plan::StageChunk& chunk);
    std::function<OfChunk> before_sums, after_sums;
  };

  // `micro`, by partial sum: the kernels of plan.micro with the exchanges of `shards`, for the
  // first of all that is in flight. `parts` are those of the rank's step. `session` and `shards`
  // must outlive it.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(Session& session, ShardsAcrossRanks& shards,
                                                       const std::vector<kernels::Kernels>& micro,
                                                       const std::vector<StepPart>& parts);

  // All passes of a step.
  absl::Status Run(const Around& around);

  // The kernels of all passes over a micro-batch, in the order of plan.micro: they receive before
  // a pass and send after it what goes between the stages, so that micro-batches go through the
  // pipeline one by one. They are those that Run runs, in the same places: those of a micro-batch
  // are apart from chunk to chunk.
  kernels::Kernels OneByOne(int64_t micro_batch);
  // Where these work, by op, and where the micro-batch is put before the first.
  std::vector<plan::Instance> PlacesOneByOne(int64_t micro_batch) const;
  plan::Instance PlaceOf(int64_t micro_batch) const;

 private:
  // The kernels of some ops of plan.micro.
  struct Part {
    plan::Run ops;
    plan::Instance of;
    friend auto operator<=>(const Part& a, const Part& b) {
      return std::tuple(a.ops.first, a.ops.end, a.of) <=> std::tuple(b.ops.first, b.ops.end, b.of);
    }
  };

  Stage(Session& session, ShardsAcrossRanks& shards, const std::vector<StepPart>& parts);

  const plan::StageChunk& ChunkOf(const plan::StageAction& action) const {
    return session_.plan().chunks[action.chunk];
  }
  // What runs in a pass.
  Part PartOf(const plan::StageAction& action) const;
  absl::StatusOr<Program> Prepare(const Part& part, const std::vector<kernels::Kernels>& micro);
  // Of the actions, the passes over a micro-batch, or its moves.
  std::vector<plan::StageAction> ActionsWith(int64_t micro_batch, bool passes) const;
  absl::Status Pass(const plan::StageAction& action, Program& program, const Around& around);
  // Sends or receives what `kind` says.
  void Move(plan::StageAction::Kind kind, const plan::StageLinks& links, const plan::Instance& of);

  Session& session_;
  ShardsAcrossRanks& shards_;
  const std::vector<plan::StageAction> actions_;
  std::vector<int64_t> partials_;  // by micro-batch
  std::map<Part, Program> programs_;
  std::vector<Program*> of_actions_;  // null: it is a move
};

}  // namespace trainyard::engine
