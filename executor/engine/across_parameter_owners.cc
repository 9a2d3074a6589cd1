#include "executor/engine/across_parameter_owners.h"

#include <utility>

#include "storage/base/status.h"

namespace trainyard::engine {

AcrossParameterOwners::AcrossParameterOwners(Session& session, const Gang& gang)
    : AcrossOwners(session, gang),
      shares_(session),
      look_ups_(session, gang),
      in_micro_(session.plan().micro_gathers),
      in_evaluation_(session.plan().evaluate_gathers),
      tasks_(session.plan().buckets.size()) {}

kernels::Kernels AcrossParameterOwners::WithExchanges(const kernels::Kernels& micro,
                                                      const StepPart& part) {
  return Gathering(AcrossOwners::WithExchanges(micro, part), in_micro_,
                   session_.plan().micro_look_up, /*in_step=*/true);
}

kernels::Kernels AcrossParameterOwners::WithGathers(const kernels::Kernels& evaluate) {
  return Gathering(evaluate, in_evaluation_, session_.plan().evaluate_look_up, /*in_step=*/false);
}

kernels::Kernels AcrossParameterOwners::Gathering(kernels::Kernels kernels,
                                                  const std::vector<plan::Gather>& gathers,
                                                  const plan::LookUp& look_up, bool in_step) {
  struct Before {
    std::vector<plan::Gather> started, awaited;
    bool starts_look_up = false, awaits_look_up = false;
    bool any() const {
      return !started.empty() || !awaited.empty() || starts_look_up || awaits_look_up;
    }
  };
  std::vector<Before> before(kernels.size());
  if (look_up.rows != plan::kNone) {
    before.front().starts_look_up = true;
    before[look_up.read_first].awaits_look_up = true;
  }
  for (const plan::Gather& gather : gathers) {
    before[gather.start_before].started.push_back(gather);
    before[gather.read.first].awaited.push_back(gather);
  }
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (!before[i].any()) continue;
    kernels[i].launch = [this, &look_up, in_step, launch = std::move(kernels[i].launch),
                         exchanges = std::move(before[i])](kernels::Stream& stream) {
      if (exchanges.starts_look_up) Start(look_up, /*mine=*/true, in_step);
      for (const plan::Gather& gather : exchanges.started) Start(gather, in_step);
      for (const plan::Gather& gather : exchanges.awaited) Await(gather, in_step);
      if (exchanges.awaits_look_up) Await(look_up, in_step);
      launch(stream);
    };
  }
  return kernels;
}

int64_t AcrossParameterOwners::StartTask(bool in_step, std::function<absl::Status()> exchange) {
  if (in_step) BeginExchanges();
  const absl::Duration bound = in_step ? bound_ : absl::InfiniteDuration();
  return lane_.Start(
      [this, bound, exchange = std::move(exchange)] { return Guarded(bound, exchange); });
}

void AcrossParameterOwners::AwaitTaskIn(bool in_step, int64_t task) {
  if (in_step) {
    AwaitTask(task);
  } else {
    lane_.WaitFor(task);  // no step takes longer for it
  }
}

void AcrossParameterOwners::Start(const plan::Gather& gather, bool in_step) {
  tasks_[gather.bucket] = StartTask(in_step, [this, bucket = gather.bucket] {
    shares_.Place(bucket);
    return sums_.Gather(shares_.Slices(bucket), handing_[bucket], shares_.Gathered(bucket));
  });
}

void AcrossParameterOwners::Await(const plan::Gather& gather, bool in_step) {
  AwaitTaskIn(in_step, tasks_[gather.bucket]);
}

void AcrossParameterOwners::Start(const plan::LookUp& look_up, bool mine, bool in_step) {
  if (look_up.rows == plan::kNone) return;
  look_up_task_ =
      StartTask(in_step, [this, &look_up, mine] { return look_ups_.Exchange(look_up, mine); });
}

void AcrossParameterOwners::Await(const plan::LookUp& look_up, bool in_step) {
  AwaitTaskIn(in_step, look_up_task_);
  // Rows that did not arrive are no rows.
  if (lane_.Failure().ok()) look_ups_.Place(look_up);
}

// What this rank is sent lies where its own micro-batch would have it, and is not read.
void AcrossParameterOwners::StartRound() {
  Start(session_.plan().micro_look_up, /*mine=*/false, /*in_step=*/true);
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
  Start(session_.plan().evaluate_look_up, /*mine=*/false, /*in_step=*/false);
  for (const plan::Gather& gather : in_evaluation_) Start(gather, /*in_step=*/false);
  return lane_.Wait();
}

absl::Status AcrossParameterOwners::GatherBucket(size_t bucket) {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  Start({.bucket = bucket}, /*in_step=*/false);
  return lane_.Wait();
}

}  // namespace trainyard::engine
