#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "executor/engine/across_gpus.h"
#include "executor/engine/gradient_shares.h"

namespace trainyard::engine {

// AcrossGpus where gradients are sharded: each micro-batch, which is all of a logical rank, hands
// out its gradients while its backward pass goes on, and its stream waits for a bucket before what
// follows needs its memory.
class AcrossGpuOwners : public AcrossGpus {
 public:
  AcrossGpuOwners(Session& session, const Gang& gang);

  // Of every micro-batch: each is a round, with kernels of its own.
  kernels::Kernels WithExchanges(const kernels::Kernels& micro, const StepPart& part) override;
  // Takes part in the rounds that are left, in which this rank has no logical rank.
  absl::Status AwaitSums() override;
  absl::Status AddSums() override { return AwaitSums(); }
  absl::Status CompleteLeaves() override;

 private:
  // One bucket in one round, ready to be exchanged.
  struct Handed {
    std::vector<Transfer> transfers;
    kernels::Kernels add_up;
  };

  absl::Status Prepare() override;
  absl::StatusOr<Handed> PrepareBucket(size_t bucket, const std::vector<plan::LeafInTurn>& round);
  // Puts `part`, of `n` elements, on top of what is at `at(place)`, as `leaf` says.
  template <typename T, typename At>
  absl::Status Push(const plan::LeafInTurn& leaf, const T* part, size_t n, const At& at,
                    kernels::Kernels& to);
  // On `stream`, which may be recorded.
  absl::Status HandOut(size_t bucket, int64_t round, kernels::Stream& stream);
  absl::Status HandOutLosses(int64_t round, kernels::Stream& stream);

  const GradientShares shares_;
  const std::vector<std::vector<plan::LeafInTurn>> rounds_;
  std::vector<std::vector<Handed>> handed_;   // by bucket, then by round
  std::vector<kernels::Kernels> add_losses_;  // by round
  // Sums of losses and targets: by rank, of a round; then by place, of all rounds so far.
  double* losses_ = nullptr;
  std::vector<std::unique_ptr<kernels::Event>> ready_, done_;  // by bucket
};

}  // namespace trainyard::engine
