#include "executor/engine/across_owners.h"

#include <algorithm>

#include "executor/engine/exchanging_program.h"
#include "executor/plan/passes/shard_gradients.h"
#include "storage/base/status.h"

namespace trainyard::engine {

AcrossOwners::AcrossOwners(Session& session, const Gang& gang)
    : AcrossHosts(session, gang),
      sum_(gang.communicator(), session.plan(), session.InMemory(session.plan().share_region)),
      tasks_(session.plan().buckets.size()) {
  const plan::Plan& plan = session.plan();
  for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    const absl::Span<char> memory = session.InMemory(plan::GradientRegionOf(plan, bucket));
    gradients_.emplace_back(reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float));
  }
}

kernels::Kernels AcrossOwners::WithExchanges(const kernels::Kernels& micro, const StepPart&) {
  kernels::Kernels all = WithStarts(
      micro, order_,
      [this](size_t bucket, kernels::Stream&) { StartBucket(bucket, gradients_[bucket]); },
      [this](size_t bucket, kernels::Stream&) { AwaitTask(tasks_[bucket]); });
  all.push_back({.launch = [this](kernels::Stream&) { AwaitTask(StartSums(places_[0].sums)); }});
  return all;
}

void AcrossOwners::StartBucket(size_t bucket, absl::Span<float> gradients) {
  BeginExchanges();
  tasks_[bucket] = lane_.Start([this, bucket, gradients, round = round_, bound = bound_] {
    return Guarded(bound, [&] { return sum_.Reduce(bucket, round, gradients); });
  });
}

int64_t AcrossOwners::StartSums(absl::Span<double> own) {
  BeginExchanges();
  const size_t n = places_[0].sums.size();
  return lane_.Start([this, own, n, round = round_++, bound = bound_] {
    return Guarded(bound, [&] { return sum_.AddSums(round, own, n); });
  });
}

void AcrossOwners::StartRound() {
  for (const plan::ReadyBucket& ready : order_) StartBucket(ready.bucket, {});
  StartSums({});
}

// Whoever calls this counts how long it takes.
absl::Status AcrossOwners::AwaitSums() {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  while (round_ < sum_.rounds()) StartRound();
  round_ = 0;
  exchanging_ = false;
  TY_RETURN_IF_ERROR(lane_.Wait());
  std::copy(sum_.sums().begin(), sum_.sums().end(), places_[0].sums.begin());
  return absl::OkStatus();
}

absl::Status AcrossOwners::CompleteLeaves() {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  return Guarded(bound_, [&] { return sum_.CompleteLeaves(); });
}

}  // namespace trainyard::engine
