#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "executor/engine/across_ranks.h"
#include "executor/engine/norm_across_ranks.h"
#include "executor/engine/parallel/lane.h"
#include "executor/engine/step_patience.h"
#include "executor/engine/sum_across_ranks.h"
#include "executor/plan/passes/bucket_order.h"

namespace trainyard::engine {

// By the communicator of the gang, on a thread of its own while kernels run. Only where the host
// reaches the device's memory.
class AcrossHosts : public AcrossRanks {
 public:
  AcrossHosts(Session& session, const Gang& gang);

  kernels::Kernels WithExchanges(const kernels::Kernels& micro, int64_t partial,
                                 int64_t folds) override;
  absl::Status Started() override { return absl::OkStatus(); }
  absl::Status AwaitSums() override;
  absl::Status AddSums() override;
  absl::Status CompleteLeaves() override;
  absl::Status ShareLeaves() override;
  absl::Status GatherParameters() override;
  absl::Status InOrder(const std::function<absl::Status()>& exchange) override;
  absl::Status Gather(absl::Span<const absl::Span<char>> parts) override;

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
  std::vector<PartialSum> places_;  // by number of the partial sum
  StepPatience patience_;
  absl::Duration bound_;
  bool exchanging_ = false;
  Lane lane_;  // uses what is above
};

}  // namespace trainyard::engine
