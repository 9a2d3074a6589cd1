#pragma once

// What the ranks of a gang exchange in a step: sums, the norm, and what each stepped.

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "executor/engine/gang.h"
#include "executor/engine/session.h"
#include "executor/engine/step_parts.h"

namespace trainyard::engine {

// Every rank makes the same calls in the same order. All of it is ordered with what the session
// launches: a call exchanges what was launched before it made, and what is launched after it finds
// the result. Hosts wait for that, GPUs do not. Nobody waits for ever for a rank that hangs.
// Failures have the fault kGang.
class AcrossRanks {
 public:
  // Between the GPUs if the gang's are linked, else between hosts, which must reach the device's
  // memory. `session` and what `gang` stands for must outlive it.
  static absl::StatusOr<std::unique_ptr<AcrossRanks>> Make(Session& session, const Gang& gang);
  virtual ~AcrossRanks() = default;

  // Kernels that run those of a micro-batch, `micro`, as `part` of the step says, and start to
  // exchange every bucket of gradients once they are done with it, while the others go on. Of the
  // last micro-batch of this rank's step, whose `folds` sums are first added to the ones below; or,
  // where gradients are sharded, of each. As many, in the same order, and then perhaps others.
  // Called again, it gives the same.
  virtual kernels::Kernels WithExchanges(const kernels::Kernels& micro, const StepPart& part) = 0;

  // The kernels of plan.micro, `micro`, each of which runs once the parameters that it reads are
  // there, of those that GatherParameters began to gather. As many, in the same order. Called
  // before WithExchanges.
  virtual kernels::Kernels WithArrivals(const kernels::Kernels& micro) = 0;

  // What went wrong in what the kernels of WithExchanges and GatherParameters started, as far as it
  // is known. Kernels that waited for what did not arrive ran all the same: on older parameters.
  virtual absl::Status Started() = 0;

  // After what the kernels of WithExchanges started, adds up losses and targets. The total of the
  // gradients is then in this rank's slices or, if plan.sums_for_all, everywhere.
  virtual absl::Status AwaitSums() = 0;

  // All of it at once, where nothing was started: the search for what is not finite, which runs op
  // by op.
  virtual absl::Status AddSums() = 0;

  // Before and after plan.norm_leaves.
  virtual absl::Status CompleteLeaves() = 0;
  virtual absl::Status ShareLeaves() = 0;

  // What every rank stepped of the parameters goes to all, bucket by bucket in the order in which
  // plan.micro reads them. May return before they are there. From then on nothing may be called
  // that exchanges, nor launched that reads parameters, until AwaitParameters or AwaitSums has
  // returned: but for the kernels of WithArrivals.
  virtual absl::Status GatherParameters() = 0;
  virtual absl::Status AwaitParameters() = 0;

  // Where parameters are sharded (else they are there, and nothing is exchanged): the kernels of
  // plan.evaluate, each of which runs once the parameters that it reads are there. As many, in the
  // same order.
  virtual kernels::Kernels WithGathers(const kernels::Kernels& evaluate) { return evaluate; }
  // What a rank does that has no batch to evaluate when others have.
  virtual absl::Status GatherForOthers() { return absl::OkStatus(); }
  // All parameters of bucket number `bucket`. They lie among the activations, until the next
  // exchange, kernel or upload.
  virtual absl::Status GatherBucket(size_t) { return absl::OkStatus(); }

  // After a failure: returns once nothing that was started touches memory any more.
  virtual void Quiesce() = 0;

  // How long kernels of WithArrivals and WithExchanges have waited so far.
  virtual absl::Duration waited() const = 0;

  // Makes another exchange of these ranks, behind all that were started, and waits for it, and so
  // for those. kGang where one of these failed.
  virtual absl::Status InOrder(const std::function<absl::Status()>& exchange) = 0;

  // parts[r], in the device's memory, of rank r goes to all.
  virtual absl::Status Gather(absl::Span<const absl::Span<char>> parts) = 0;
};

}  // namespace trainyard::engine
