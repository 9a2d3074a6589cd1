#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "executor/engine/across_owners.h"
#include "executor/engine/parameter_shares.h"
#include "executor/plan/graph/plan.h"

namespace trainyard::engine {

// AcrossOwners where parameters are sharded too: each micro-batch gathers them as
// plan.micro_gathers says, and so does each batch of an evaluation.
class AcrossParameterOwners : public AcrossOwners {
 public:
  AcrossParameterOwners(Session& session, const Gang& gang);
  ~AcrossParameterOwners() override { lane_.End(); }  // before what it uses goes

  kernels::Kernels WithExchanges(const kernels::Kernels& micro, const StepPart& part) override;
  kernels::Kernels WithGathers(const kernels::Kernels& evaluate) override;
  absl::Status GatherForOthers() override;
  absl::Status GatherBucket(size_t bucket) override;

 protected:
  void StartRound() override;

 private:
  // Each of `kernels` after it has started the exchanges that begin before it and waited for those
  // that it waits for. In a step an exchange may take as long as the step's others.
  kernels::Kernels Gathering(kernels::Kernels kernels, const std::vector<plan::Gather>& gathers,
                             bool in_step);
  void Start(const plan::Gather& gather, bool in_step);
  void Await(const plan::Gather& gather, bool in_step);

  const ParameterShares shares_;
  const std::vector<plan::Gather>&in_micro_, &in_evaluation_;
  std::vector<int64_t> tasks_;  // on the lane, by bucket: the last that gathers it
};

}  // namespace trainyard::engine
