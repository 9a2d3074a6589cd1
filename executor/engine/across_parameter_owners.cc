#include "executor/engine/across_parameter_owners.h"

#include <utility>

#include "storage/base/status.h"

namespace trainyard::engine {

AcrossParameterOwners::AcrossParameterOwners(Session& session, const Gang& gang)
    : AcrossOwners(session, gang),
      shares_(session),
      in_micro_(session.plan().micro_gathers),
      in_evaluation_(session.plan().evaluate_gathers),
      tasks_(session.plan().buckets.size()) {}

kernels::Kernels AcrossParameterOwners::WithExchanges(const kernels::Kernels& micro,
                                                      const StepPart& part) {
  return Gathering(AcrossOwners::WithExchanges(micro, part), in_micro_, /*in_step=*/true);
}

kernels::Kernels AcrossParameterOwners::WithGathers(const kernels::Kernels& evaluate) {
  return Gathering(evaluate, in_evaluation_, /*in_step=*/false);
}

kernels::Kernels AcrossParameterOwners::Gathering(kernels::Kernels kernels,
                                                  const std::vector<plan::Gather>& gathers,
                                                  bool in_step) {
  struct Before {
    std::vector<plan::Gather> started, awaited;
  };
  std::vector<Before> before(kernels.size());
  for (const plan::Gather& gather : gathers) {
    before[gather.start_before].started.push_back(gather);
    before[gather.read.first].awaited.push_back(gather);
  }
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (before[i].started.empty() && before[i].awaited.empty()) continue;
    kernels[i].launch = [this, in_step, launch = std::move(kernels[i].launch),
                         exchanges = std::move(before[i])](kernels::Stream& stream) {
      for (const plan::Gather& gather : exchanges.started) Start(gather, in_step);
      for (const plan::Gather& gather : exchanges.awaited) Await(gather, in_step);
      launch(stream);
    };
  }
  return kernels;
}

void AcrossParameterOwners::Start(const plan::Gather& gather, bool in_step) {
  if (in_step) BeginExchanges();
  const absl::Duration bound = in_step ? bound_ : absl::InfiniteDuration();
  tasks_[gather.bucket] = lane_.Start([this, bucket = gather.bucket, bound] {
    shares_.Place(bucket);
    return Guarded(bound,
                   [&] { return sums_.Gather(shares_.Slices(bucket), shares_.Gathered(bucket)); });
  });
}

void AcrossParameterOwners::Await(const plan::Gather& gather, bool in_step) {
  if (in_step) {
    AwaitTask(tasks_[gather.bucket]);
  } else {
    lane_.WaitFor(tasks_[gather.bucket]);  // no step takes longer for it
  }
}

// What this rank is sent lies where its own micro-batch would have it, and is not read.
void AcrossParameterOwners::StartRound() {
  auto gather = in_micro_.begin();
  for (const plan::ReadyBucket& ready : order_) {
    for (; gather != in_micro_.end() && gather->start_before <= ready.after_op; ++gather) {
      Start(*gather, /*in_step=*/true);
    }
    StartBucket(ready.bucket, {});
  }
  for (; gather != in_micro_.end(); ++gather) Start(*gather, /*in_step=*/true);
  StartSums({});
}

absl::Status AcrossParameterOwners::GatherForOthers() {
  for (const plan::Gather& gather : in_evaluation_) Start(gather, /*in_step=*/false);
  return lane_.Wait();
}

absl::Status AcrossParameterOwners::GatherBucket(size_t bucket) {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  Start({.bucket = bucket}, /*in_step=*/false);
  return lane_.Wait();
}

}  // namespace trainyard::engine
