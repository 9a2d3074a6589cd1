// What a trainer exchanges with the other ranks of its gang at the end of a step.

#include <vector>

#include "absl/types/span.h"
#include "executor/engine/trainer.h"
#include "storage/base/status.h"

namespace trainyard::engine {

absl::Status Trainer::EndOfGang() {
  // A stage starts no exchange of gradients while its passes go on, which exchange themselves.
  if (across_) {
    TY_RETURN_IF_ERROR(Await([&] { return stage_ ? across_->AddSums() : across_->AwaitSums(); }));
  }
  TY_RETURN_IF_ERROR(GatherRows());
  TY_RETURN_IF_ERROR(GatherMoments());
  if (!session_.plan().sharded) return RunEnd();
  if (!session_.plan().sums_for_all) {
    session_.Launch(clear_padding_);
    TY_RETURN_IF_ERROR(Await([&] { return across_->CompleteLeaves(); }));
    session_.Launch(norm_leaves_);
    // The last exchange before the state changes. It returns once all ranks have got as far.
    can_finish_ = true;
    TY_RETURN_IF_ERROR(Await([&] { return across_->ShareLeaves(); }));
    can_finish_ = false;
  }
  TY_RETURN_IF_ERROR(RunEnd());
  // Between steps the gang decides together how to go on, by the communicator that gathers: what
  // waits for that is enqueued now, or gathered once the next step begins.
  ungathered_ = true;
  return session_.Asynchronous() ? AwaitParameters() : absl::OkStatus();
}

absl::Status Trainer::RunEnd() {
  updating_ = true;
  const absl::Status ran = session_.Run(end_of_gang_);
  return shards_ && !shards_->status().ok() ? shards_->status() : ran;
}

absl::Status Trainer::GatherRows() {
  const plan::Plan& plan = session_.plan();
  if (plan.row_gradient == plan::kNone || !across_) return absl::OkStatus();
  const int ranks = groups_.data().size();
  for (const plan::TensorId id : {plan.row_gradient, plan.row_ids}) {
    const int64_t each = plan.tensors[id].bytes() / plan.logical_ranks;
    std::vector<plan::LeafRange> runs(ranks);  // that are gathered at once
    const auto gather = [&] {
      std::vector<absl::Span<char>> parts;
      for (const plan::LeafRange& run : runs) {
        parts.push_back(session_.InMemory(
            {.offset = plan.offsets[id] + run.first * each, .bytes = run.size() * each}));
      }
      runs.assign(ranks, {});
      return Await([&] { return across_->Gather(parts); });
    };
    int64_t logical = 0;
    for (const int64_t host : HostsOf(plan, ranks)) {
      // Where ranks take the logical ranks in turn, those of a round.
      if (runs[host].size() > 0 && runs[host].end != logical) TY_RETURN_IF_ERROR(gather());
      if (runs[host].size() == 0) runs[host].first = logical;
      runs[host].end = ++logical;
    }
    TY_RETURN_IF_ERROR(gather());
  }
  return absl::OkStatus();
}

absl::Status Trainer::GatherMoments() {
  if (move_buffers_.empty() || !across_) return absl::OkStatus();
  const plan::Plan& plan = session_.plan();
  std::vector<absl::Span<char>> of_ranks;
  const int ranks = groups_.data().size();
  for (int rank = 0; rank < ranks; ++rank) {
    const plan::LeafRange run = plan::HostedBy(plan.logical_ranks, ranks, rank);
    const int64_t bytes = plan.micro_batches * plan.pending_region.bytes;
    of_ranks.push_back(session_.InMemory(
        {.offset = plan.moments_region.offset + run.first * bytes, .bytes = run.size() * bytes}));
  }
  return Await([&] { return across_->Gather(of_ranks); });
}

void Trainer::MoveBuffers() {
  const plan::Plan& plan = session_.plan();
  for (int64_t i = 0; i < plan.logical_ranks * plan.micro_batches; ++i) {
    session_.Copy(MomentsOf(i), plan.pending_region.offset, plan.pending_region.bytes);
    session_.Launch(move_buffers_);
  }
}

}  // namespace trainyard::engine
