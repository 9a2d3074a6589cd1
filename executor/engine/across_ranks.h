#pragma once

// What the ranks of a gang exchange in a step: sums, the norm, and what each stepped.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "executor/engine/gang.h"
#include "executor/engine/norm_across_ranks.h"
#include "executor/engine/parallel/lane.h"
#include "executor/engine/session.h"
#include "executor/engine/step_patience.h"
#include "executor/engine/sum_across_ranks.h"
#include "executor/plan/passes/bucket_order.h"

namespace trainyard::engine {

// Only where the host reaches the device's memory. Every rank makes the same calls in the same
// order; nobody waits for ever for a rank that hangs. Failures have the fault kGang.
class AcrossRanks {
 public:
  // `session` and what `gang` stands for must outlive it.
  AcrossRanks(Session& session, const Gang& gang);

  // Kernels that run those of a micro-batch, `micro`, the last of this rank's step, and start to
  // exchange every bucket of gradients once they are done with it, while the others go on. `folds`
  // sums of this rank are first added to the ones below, from number `partial` down. Called again,
  // it gives the same.
  kernels::Kernels WithExchanges(const kernels::Kernels& micro, int64_t partial, int64_t folds);

  // Waits for what the kernels of WithExchanges started, and adds up losses and targets. The total
  // of the gradients is then in this rank's slices or, if nothing is sharded, everywhere.
  absl::Status AwaitSums();

  // All of it at once, where nothing was started.
  absl::Status AddSums();

  // Before and after plan.norm_leaves.
  absl::Status CompleteLeaves();
  absl::Status ShareLeaves();

  // What every rank stepped of the parameters goes to all.
  absl::Status GatherParameters();

 private:
  // The first exchange of a step decides how long all of them may stand still.
  void BeginExchanges();
  void StartBucket(const plan::Bucket& bucket, int64_t partial, int64_t folds);
  absl::Status ExchangeBucket(const plan::Bucket& bucket);
  absl::Status Guarded(const std::function<absl::Status()>& exchange);

  Session& session_;
  const Gang gang_;
  const std::vector<plan::ReadyBucket> order_;
  SumAcrossRanks sums_;
  NormAcrossRanks norm_;
  std::vector<PartialSumOnHost> places_;  // by number of the partial sum
  StepPatience patience_;
  absl::Duration bound_;
  bool exchanging_ = false;
  Lane lane_;  // uses what is above
};

}  // namespace trainyard::engine
