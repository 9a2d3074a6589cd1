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

  kernels::Kernels WithExchanges(const kernels::Kernels& micro, const StepPart& part) override;
  kernels::Kernels WithArrivals(const kernels::Kernels& micro) override;
  absl::Status Started() override { return lane_.Failure(); }
  absl::Status AwaitSums() override;
  absl::Status AddSums() override;
  absl::Status CompleteLeaves() override;
  absl::Status ShareLeaves() override;
  absl::Status GatherParameters() override;
  absl::Status InOrder(const std::function<absl::Status()>& exchange) override;
  absl::Status AwaitParameters() override { return lane_.Wait(); }
  void Quiesce() override { lane_.Wait().IgnoreError(); }
  absl::Duration waited() const override { return waited_; }
  absl::Status Gather(absl::Span<const absl::Span<char>> parts) override;

 protected:
  // The first exchange of a step decides how long all of them may stand still.
  void BeginExchanges();
  // On the lane, and elsewhere while nothing is on it: an exchange that stands still for `bound`
  // fails.
  absl::Status Guarded(absl::Duration bound, const std::function<absl::Status()>& exchange);
  // Waits for what is on the lane up to task number `task`.
  void AwaitTask(int64_t task);

  Session& session_;
  const Gang gang_;
  const std::vector<plan::ReadyBucket> order_;
  std::vector<plan::Handing> handing_;  // by bucket
  std::vector<PartialSum> places_;      // by number of the partial sum
  SumAcrossRanks sums_;
  absl::Duration bound_;
  bool exchanging_ = false;

 private:
  void StartBucket(size_t bucket, int64_t partial, int64_t folds);
  absl::Status ExchangeBucket(size_t bucket);
  // Waits for the first `count` of arrivals_.
  void AwaitArrivals(int64_t count) { AwaitTask(before_gather_ + count); }

  const std::vector<plan::AwaitedBucket> arrivals_;
  NormAcrossRanks norm_;
  StepPatience patience_;
  // The lane's task number before_gather_ + i + 1 gathers, or has gathered, arrivals_[i].
  int64_t before_gather_ = 0;
  absl::Duration waited_;

 protected:
  Lane lane_;  // uses what is above
};

}  // namespace trainyard::engine
