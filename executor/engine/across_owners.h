#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "executor/engine/across_hosts.h"
#include "executor/engine/sum_to_owners.h"

namespace trainyard::engine {

// AcrossHosts where gradients are sharded: each micro-batch, which is all of a logical rank, hands
// out its gradients while its backward pass goes on, and waits for a bucket before what follows
// needs its memory.
class AcrossOwners : public AcrossHosts {
 public:
  AcrossOwners(Session& session, const Gang& gang);
  ~AcrossOwners() override { lane_.End(); }  // before what it uses goes

  // Of every micro-batch: each is a round.
  kernels::Kernels WithExchanges(const kernels::Kernels& micro, const StepPart& part) override;
  // Takes part in the rounds that are left, in which this rank has no logical rank.
  absl::Status AwaitSums() override;
  absl::Status AddSums() override { return AwaitSums(); }
  absl::Status CompleteLeaves() override;

 protected:
  void StartBucket(size_t bucket, absl::Span<float> gradients);
  // Starts to hand out losses and targets, the last of a round. Returns the lane's task.
  int64_t StartSums(absl::Span<double> own);
  // Starts all exchanges of a round in which this rank has no logical rank.
  virtual void StartRound();

 private:
  SumToOwners sum_;
  std::vector<absl::Span<float>> gradients_;  // by bucket: of the micro-batch at hand
  std::vector<int64_t> tasks_;                // on the lane, by bucket
  int64_t round_ = 0;
};

}  // namespace trainyard::engine
