#include "executor/engine/across_gpus.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/engine/across_gpu_owners.h"
#include "executor/engine/exchanging_program.h"
#include "executor/engine/fault.h"
#include "executor/plan/cost/gang_memory.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

absl::Span<float> SliceOf(absl::Span<float> values, const plan::ElementRange& slice) {
  return values.subspan(slice.first, slice.size());
}

absl::Span<char> Bytes(absl::Span<float> values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)};
}

template <typename T>
constexpr kernels::DType kTypeOf = kernels::DType::kF32;
template <>
constexpr kernels::DType kTypeOf<double> = kernels::DType::kF64;

}  // namespace

AcrossGpus::AcrossGpus(Session& session, const Gang& gang)
    : session_(session),
      gang_(gang),
      links_(*gang.links()),
      order_(plan::BucketOrder(session.plan())),
      exchanges_(session.device().MakeStream()),
      all_(SumsOfGang(session.plan().logical_ranks, gang.size())),
      exchanged_(session.device().MakeEvent()) {
  for (size_t p = 0; p <= session.plan().partial_sums.size(); ++p) {
    places_.push_back(session.PartialInMemory(static_cast<int64_t>(p)));
  }
  links_.SetPatience(StepPatience::kFirst);
}

AcrossGpus::~AcrossGpus() {
  session_.Synchronize()
      .IgnoreError();  // nothing is left on either stream, or the links are aborted
  session_.device().Synchronize(*exchanges_).IgnoreError();
  session_.device().Free(received_);
}

absl::StatusOr<std::unique_ptr<AcrossGpus>> AcrossGpus::Make(Session& session, const Gang& gang) {
  std::unique_ptr<AcrossGpus> made(session.plan().gradients_sharded
                                       ? new AcrossGpuOwners(session, gang)
                                       : new AcrossGpus(session, gang));
  TY_RETURN_IF_ERROR(made->Prepare());
  return made;
}

absl::Status AcrossGpus::Prepare() {
  const plan::Plan& plan = session_.plan();
  TY_RETURN_IF_ERROR(AllocateReceived(std::max<int64_t>(
      plan::ReceivedBytes(plan), all_.all() * static_cast<int64_t>(places_[0].sums.size() * 8))));
  for (const plan::Bucket& bucket : plan.buckets) {
    TY_ASSIGN_OR_RETURN(buckets_.emplace_back(), PrepareBucket(bucket));
  }
  return PrepareSums();
}

absl::Status AcrossGpus::AllocateReceived(int64_t bytes) {
  absl::StatusOr<void*> received = session_.device().Allocate(bytes);
  if (!received.ok()) {
    return WithFault(
        Fault::kOutOfMemory,
        Annotate(received.status(), absl::StrCat("what other ranks send, ", bytes, " bytes")));
  }
  received_ = static_cast<char*>(*received);
  return absl::OkStatus();
}

template <typename T>
absl::Status AcrossGpus::PrepareFold(const T* part, T* total, size_t n, kernels::Kernels& to) {
  if (n == 0) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(to.emplace_back(), session_.device().Prepare(kernels::Fold{
                                             .part = {const_cast<T*>(part), kTypeOf<T>},
                                             .total = {total, kTypeOf<T>},
                                             .n = static_cast<int64_t>(n)}));
  return absl::OkStatus();
}

template absl::Status AcrossGpus::PrepareFold(const float*, float*, size_t, kernels::Kernels&);
template absl::Status AcrossGpus::PrepareFold(const double*, double*, size_t, kernels::Kernels&);

absl::StatusOr<AcrossGpus::PreparedBucket> AcrossGpus::PrepareBucket(const plan::Bucket& bucket) {
  const int me = gang_.rank();
  PreparedBucket exchanged{.ready = session_.device().MakeEvent()};
  for (size_t p = 0; p + 1 < places_.size(); ++p) {
    TY_RETURN_IF_ERROR(PrepareFold(SliceOf(places_[p + 1].gradients, bucket.elements).data(),
                                   SliceOf(places_[p].gradients, bucket.elements).data(),
                                   bucket.elements.size(), exchanged.folds.emplace_back()));
  }
  const absl::Span<float> mine = SliceOf(places_[0].gradients, bucket.slices[me]);
  // Where the sums of this slice are that are added up: this rank's own are there already.
  std::vector<absl::Span<float>> sums;
  auto* received = reinterpret_cast<float*>(received_);
  int64_t most = 0;
  for (int rank = 0; rank < gang_.size(); ++rank) {
    most = std::max(most, all_.of(rank));
    for (int64_t i = 0; i < all_.of(rank); ++i) {
      if (rank == me) {
        sums.push_back(SliceOf(places_[i].gradients, bucket.slices[me]));
      } else {
        sums.emplace_back(std::exchange(received, received + mine.size()), mine.size());
      }
    }
  }
  for (int64_t i = 0; i < most; ++i) {
    std::vector<Transfer>& round = exchanged.rounds.emplace_back();
    for (int rank = 0; rank < gang_.size(); ++rank) {
      if (rank == me) continue;
      Transfer& transfer = round.emplace_back(Transfer{.peer = rank});
      if (i < all_.of(me)) {
        transfer.send = Bytes(SliceOf(places_[i].gradients, bucket.slices[rank]));
      }
      if (i < all_.of(rank)) transfer.receive = Bytes(sums[all_.first[rank] + i]);
    }
  }
  for (const auto& [to, from] : all_.folds) {
    TY_RETURN_IF_ERROR(
        PrepareFold(sums[from].data(), sums[to].data(), mine.size(), exchanged.add_up));
  }
  exchanged.own_slice = Bytes(mine);
  exchanged.total = Bytes(sums[0]);
  return exchanged;
}

absl::Status AcrossGpus::PrepareSums() {
  const size_t n = places_[0].sums.size();
  auto* const sums = reinterpret_cast<double*>(received_);
  for (int rank = 0; rank < gang_.size(); ++rank) {
    losses_.emplace_back(reinterpret_cast<char*>(sums + all_.first[rank] * n),
                         all_.of(rank) * n * sizeof(double));
  }
  for (const auto& [to, from] : all_.folds) {
    TY_RETURN_IF_ERROR(PrepareFold(sums + from * n, sums + to * n, n, add_losses_));
  }
  return absl::OkStatus();
}

kernels::Kernels AcrossGpus::WithExchanges(const kernels::Kernels& micro, const StepPart& part) {
  kernels::Device& device = session_.device();
  const int64_t partial = part.partial, folds = part.folds;
  kernels::Kernels all =
      WithStarts(micro, order_, [=, this, &device](size_t b, kernels::Stream& stream) {
        device.RecordEvent(*buckets_[b].ready, stream);
        device.StreamWait(*exchanges_, *buckets_[b].ready);
        for (int64_t to = partial - 1; to >= partial - folds; --to) {
          for (const kernels::Kernel& fold : buckets_[b].folds[to]) fold.launch(*exchanges_);
        }
        if (started_.ok()) started_ = Exchange(b, *exchanges_);
      });
  if (order_.empty()) return all;
  all.push_back({.launch = [this, &device](kernels::Stream& stream) {
    device.RecordEvent(*exchanged_, *exchanges_);
    device.StreamWait(stream, *exchanged_);
  }});
  return all;
}

absl::Status AcrossGpus::Exchange(size_t bucket, kernels::Stream& stream) {
  const PreparedBucket& exchanged = buckets_[bucket];
  for (const std::vector<Transfer>& round : exchanged.rounds) {
    TY_RETURN_IF_ERROR(links_.Exchange(stream, round));
  }
  for (const kernels::Kernel& add : exchanged.add_up) add.launch(stream);
  const absl::Span<char> slice = exchanged.own_slice;
  if (exchanged.total.data() != slice.data() && !slice.empty()) {
    session_.device().Copy(stream, slice.data(), exchanged.total.data(), slice.size());
  }
  if (!session_.plan().sums_for_all) return absl::OkStatus();
  return GatherSlices(session_.plan().buckets[bucket], places_[0].gradients, stream);
}

absl::Status AcrossGpus::GatherSlices(const plan::Bucket& bucket, absl::Span<float> values,
                                      kernels::Stream& stream) {
  std::vector<absl::Span<char>> parts;
  for (const plan::ElementRange& slice : bucket.slices) {
    parts.push_back(Bytes(SliceOf(values, slice)));
  }
  return links_.AllGather(stream, parts);
}

absl::Status AcrossGpus::AwaitSums() {
  TY_RETURN_IF_ERROR(Started());
  links_.SetPatience(patience_.Next(absl::Now()));
  kernels::Device& device = session_.device();
  const size_t bytes = places_[0].sums.size() * sizeof(double);
  const absl::Span<char> own = losses_[gang_.rank()];
  for (int64_t i = 0; i < all_.of(gang_.rank()); ++i) {
    device.Copy(session_.stream(), own.data() + i * bytes, places_[i].sums.data(), bytes);
  }
  TY_RETURN_IF_ERROR(OfGang(links_.AllGather(session_.stream(), losses_)));
  session_.Launch(add_losses_);
  device.Copy(session_.stream(), places_[0].sums.data(), losses_[0].data(), bytes);
  return absl::OkStatus();
}

absl::Status AcrossGpus::AddSums() {
  for (const plan::ReadyBucket& ready : order_) {
    TY_RETURN_IF_ERROR(OfGang(Exchange(ready.bucket, session_.stream())));
  }
  return AwaitSums();
}

absl::Status AcrossGpus::CompleteLeaves() {
  for (const plan::SharedLeaf& leaf : plan::SharedLeaves(session_.plan().buckets)) {
    const absl::Span<char> rest = Bytes(SliceOf(places_[0].gradients, leaf.elements));
    Transfer transfer;
    if (leaf.owner == gang_.rank()) {
      transfer = {.peer = static_cast<int>(leaf.holder), .receive = rest};
    } else if (leaf.holder == gang_.rank()) {
      transfer = {.peer = static_cast<int>(leaf.owner), .send = rest};
    } else {
      continue;
    }
    TY_RETURN_IF_ERROR(OfGang(links_.Exchange(session_.stream(), {&transfer, 1})));
  }
  return absl::OkStatus();
}

absl::Status AcrossGpus::ShareLeaves() {
  const absl::Span<char> leaves = session_.InMemory(session_.plan().leaves_region);
  for (const plan::Bucket& bucket : session_.plan().buckets) {
    std::vector<absl::Span<char>> parts;
    for (const plan::ElementRange& slice : bucket.slices) {
      const plan::ElementRange of_rank = plan::LeavesOf(slice);
      parts.push_back(
          leaves.subspan(of_rank.first * sizeof(double), of_rank.size() * sizeof(double)));
    }
    TY_RETURN_IF_ERROR(OfGang(links_.AllGather(session_.stream(), parts)));
  }
  return absl::OkStatus();
}

absl::Status AcrossGpus::GatherParameters() {
  const absl::Span<char> region = session_.InMemory(session_.plan().parameter_region);
  const absl::Span<float> parameters = {reinterpret_cast<float*>(region.data()),
                                        region.size() / sizeof(float)};
  for (const plan::Bucket& bucket : session_.plan().buckets) {
    TY_RETURN_IF_ERROR(OfGang(GatherSlices(bucket, parameters, session_.stream())));
  }
  return absl::OkStatus();
}

absl::Status AcrossGpus::InOrder(const std::function<absl::Status()>&) {
  return WithFault(Fault::kUnimplemented,
                   absl::UnimplementedError("hosts that exchange what GPUs compute"));
}

absl::Status AcrossGpus::Gather(absl::Span<const absl::Span<char>> parts) {
  return OfGang(links_.AllGather(session_.stream(), parts));
}

}  // namespace trainyard::engine
