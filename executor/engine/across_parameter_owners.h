#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "executor/engine/across_owners.h"
#include "executor/engine/look_ups.h"
#include "executor/engine/parameter_shares.h"
#include "executor/plan/graph/plan.h"

namespace trainyard::engine {

// AcrossOwners where parameters are sharded too: each micro-batch gathers them as
// plan.micro_gathers says, and so does each batch of an evaluation. Where tables are shared out,
// what a batch looks up is exchanged before that.
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
                             const plan::LookUp& look_up, bool in_step);
  void Start(const plan::Gather& gather, bool in_step);
  void Await(const plan::Gather& gather, bool in_step);
  // `mine`: of a batch of this rank, which then finds the rows after Await.
  void Start(const plan::LookUp& look_up, bool mine, bool in_step);
  void Await(const plan::LookUp& look_up, bool in_step);
  // Puts an exchange on the lane, and returns the number of the task.
  int64_t StartTask(bool in_step, std::function<absl::Status()> exchange);
  void AwaitTaskIn(bool in_step, int64_t task);

  const ParameterShares shares_;
  LookUps look_ups_;
  const std::vector<plan::Gather>&in_micro_, &in_evaluation_;
  std::vector<int64_t> tasks_;  // on the lane, by bucket: the last that gathers it
  int64_t look_up_task_ = 0;
};

}  // namespace trainyard::engine
