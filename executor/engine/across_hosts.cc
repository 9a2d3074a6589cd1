#include "executor/engine/across_hosts.h"

#include <utility>

#include "absl/time/clock.h"
#include "executor/engine/exchanging_program.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {

AcrossHosts::AcrossHosts(Session& session, const Gang& gang)
    : session_(session),
      gang_(gang),
      order_(plan::BucketOrder(session.plan())),
      sums_(gang.communicator(), session.plan().logical_ranks),
      arrivals_(plan::AwaitedOrder(session.plan())),
      norm_(gang.communicator(), session.plan().buckets, session.plan().owners > 1) {
  TY_CHECK(session.HostView(session.plan().gradient_region) != nullptr,
           "the host cannot reach the memory of ", session.device().Description());
  before_gather_ = -static_cast<int64_t>(arrivals_.size());  // all are there
  for (const plan::Bucket& bucket : session.plan().buckets) {
    handing_.push_back(plan::HandingOf(bucket, gang.rank()));
  }
  for (size_t p = 0; p <= session.plan().partial_sums.size(); ++p) {
    places_.push_back(session.PartialInMemory(static_cast<int64_t>(p)));
  }
}

kernels::Kernels AcrossHosts::WithExchanges(const kernels::Kernels& micro, const StepPart& part) {
  return WithStarts(micro, order_,
                    [this, partial = part.partial, folds = part.folds](
                        size_t bucket, kernels::Stream&) { StartBucket(bucket, partial, folds); });
}

kernels::Kernels AcrossHosts::WithArrivals(const kernels::Kernels& micro) {
  kernels::Kernels all = micro;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    const int64_t op = arrivals_[i].before_op;
    if (op == static_cast<int64_t>(micro.size())) break;
    // Of the buckets that an op is the first to read, the last one arrives last.
    if (i + 1 < arrivals_.size() && arrivals_[i + 1].before_op == op) continue;
    all[op].launch = [this, count = static_cast<int64_t>(i) + 1,
                      launch = micro[op].launch](kernels::Stream& stream) {
      AwaitArrivals(count);
      launch(stream);
    };
  }
  return all;
}

void AcrossHosts::AwaitTask(int64_t task) {
  if (lane_.Ended(task)) return;
  const absl::Time begun = absl::Now();
  lane_.WaitFor(task);
  waited_ += absl::Now() - begun;
}

void AcrossHosts::BeginExchanges() {
  if (!std::exchange(exchanging_, true)) bound_ = patience_.Next(absl::Now());
}

void AcrossHosts::StartBucket(size_t bucket, int64_t partial, int64_t folds) {
  BeginExchanges();
  lane_.Start([this, bucket, partial, folds, bound = bound_] {
    const plan::ElementRange& elements = session_.plan().buckets[bucket].elements;
    for (int64_t from = partial; from > partial - folds; --from) {
      float* const total = places_[from - 1].gradients.data();
      const float* const part = places_[from].gradients.data();
      for (int64_t i = elements.first; i < elements.end; ++i) total[i] += part[i];
    }
    return Guarded(bound, [&] { return ExchangeBucket(bucket); });
  });
}

absl::Status AcrossHosts::ExchangeBucket(size_t bucket) {
  const plan::Bucket& slices = session_.plan().buckets[bucket];
  TY_RETURN_IF_ERROR(sums_.Reduce(slices, absl::MakeSpan(places_).first(sums_.own())));
  if (!session_.plan().sums_for_all) return absl::OkStatus();
  return sums_.Gather(slices, handing_[bucket], places_[0].gradients);
}

absl::Status AcrossHosts::Guarded(absl::Duration bound,
                                  const std::function<absl::Status()>& exchange) {
  Communicator& communicator = gang_.communicator();
  communicator.SetPatience(bound);
  const absl::Status exchanged = exchange();
  communicator.SetPatience(absl::InfiniteDuration());
  return WithFault(Fault::kGang, exchanged);
}

absl::Status AcrossHosts::AwaitSums() {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  BeginExchanges();
  lane_.Start([this, bound = bound_] {
    return Guarded(bound,
                   [&] { return sums_.AddSums(absl::MakeSpan(places_).first(sums_.own())); });
  });
  exchanging_ = false;
  return lane_.Wait();
}

absl::Status AcrossHosts::AddSums() {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  for (const plan::ReadyBucket& ready : order_) {
    StartBucket(ready.bucket, 0, 0);
  }
  return AwaitSums();
}

absl::Status AcrossHosts::CompleteLeaves() {
  return Guarded(bound_, [&] { return norm_.CompleteLeaves(places_[0].gradients); });
}

absl::Status AcrossHosts::ShareLeaves() {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  const absl::Span<char> leaves = session_.InMemory(session_.plan().leaves_region);
  return Guarded(bound_, [&] {
    return norm_.ShareLeaves(
        {reinterpret_cast<double*>(leaves.data()), leaves.size() / sizeof(double)});
  });
}

absl::Status AcrossHosts::GatherParameters() {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  const absl::Span<char> region = session_.InMemory(session_.plan().parameter_region);
  const absl::Span<float> parameters = {reinterpret_cast<float*>(region.data()),
                                        region.size() / sizeof(float)};
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    const size_t bucket = arrivals_[i].bucket;
    const int64_t task = lane_.Start([this, bucket, parameters, bound = bound_] {
      const plan::Bucket& slices = session_.plan().buckets[bucket];
      return Guarded(bound, [&] { return sums_.Gather(slices, handing_[bucket], parameters); });
    });
    if (i == 0) before_gather_ = task - 1;
  }
  return absl::OkStatus();
}

absl::Status AcrossHosts::InOrder(const std::function<absl::Status()>& exchange) {
  lane_.Start(exchange);
  return lane_.Wait();
}

absl::Status AcrossHosts::Gather(absl::Span<const absl::Span<char>> parts) {
  TY_RETURN_IF_ERROR(session_.Synchronize());
  return Guarded(bound_, [&] { return gang_.communicator().AllGather(parts); });
}

}  // namespace trainyard::engine
