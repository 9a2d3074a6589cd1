#include "executor/engine/across_gpu_owners.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/engine/exchanging_program.h"
#include "executor/engine/fault.h"
#include "executor/plan/cost/gang_memory.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/shard_gradients.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

template <typename T>
absl::Span<char> BytesOf(const T* values, size_t n) {
  return {reinterpret_cast<char*>(const_cast<T*>(values)), n * sizeof(T)};
}

}  // namespace

AcrossGpuOwners::AcrossGpuOwners(Session& session, const Gang& gang)
    : AcrossGpus(session, gang),
      shares_(session.plan(), session.InMemory(session.plan().share_region)),
      rounds_(plan::RoundsInTurn(session.plan().logical_ranks, gang.size())) {}

absl::Status AcrossGpuOwners::Prepare() {
  const plan::Plan& plan = session_.plan();
  const size_t n = places_[0].sums.size();
  const int64_t of_buckets = plan::Align(plan::ReceivedBytes(plan));
  const auto of_losses =
      (gang_.size() + MostPlaces(rounds_)) * static_cast<int64_t>(n * sizeof(double));
  TY_RETURN_IF_ERROR(AllocateReceived(of_buckets + of_losses));
  losses_ = reinterpret_cast<double*>(received_ + of_buckets);
  for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    ready_.push_back(session_.device().MakeEvent());
    done_.push_back(session_.device().MakeEvent());
    std::vector<Handed>& handed = handed_.emplace_back();
    for (const std::vector<plan::LeafInTurn>& round : rounds_) {
      TY_ASSIGN_OR_RETURN(handed.emplace_back(), PrepareBucket(bucket, round));
    }
  }
  for (const std::vector<plan::LeafInTurn>& round : rounds_) {
    kernels::Kernels& add = add_losses_.emplace_back();
    const auto at = [&](int64_t place) { return losses_ + (gang_.size() + place) * n; };
    for (const plan::LeafInTurn& leaf : round) {
      TY_RETURN_IF_ERROR(Push(leaf, losses_ + leaf.rank * n, n, at, add));
    }
  }
  return absl::OkStatus();
}

template <typename T, typename At>
absl::Status AcrossGpuOwners::Push(const plan::LeafInTurn& leaf, const T* part, size_t n,
                                   const At& at, kernels::Kernels& to) {
  if (leaf.folds == 0) {
    to.push_back({.launch = [&device = session_.device(), top = at(leaf.place), part,
                             n](kernels::Stream& stream) {
      device.Copy(stream, top, part, n * sizeof(T));
    }});
    return absl::OkStatus();
  }
  for (int64_t fold = 0; fold < leaf.folds; ++fold) {
    const T* const top = fold == 0 ? part : at(leaf.place - fold);
    TY_RETURN_IF_ERROR(PrepareFold(top, at(leaf.place - fold - 1), n, to));
  }
  return absl::OkStatus();
}

absl::StatusOr<AcrossGpuOwners::Handed> AcrossGpuOwners::PrepareBucket(
    size_t bucket, const std::vector<plan::LeafInTurn>& round) {
  const plan::Plan& plan = session_.plan();
  const plan::Bucket& cut = plan.buckets[bucket];
  const int me = gang_.rank();
  const int64_t n = cut.slices[me].size();
  const auto* const made = reinterpret_cast<const float*>(
      session_.InMemory(plan::GradientRegionOf(plan, bucket)).data());
  const auto slice = [&](int64_t rank) {  // what this rank's logical rank made of it
    return made + (cut.slices[rank].first - cut.elements.first);
  };
  auto* const received = reinterpret_cast<float*>(received_);
  const auto from = [&](int64_t rank) { return received + (rank < me ? rank : rank - 1) * n; };
  const auto at = [&](int64_t place) {
    return place < plan.share_places
               ? shares_.At(bucket, place, cut.slices[me].first)
               : received + (gang_.size() - 1 + place - plan.share_places) * n;
  };
  Handed handed;
  for (int rank = 0; rank < gang_.size(); ++rank) {
    if (rank == me) continue;
    Transfer& transfer = handed.transfers.emplace_back(Transfer{.peer = rank});
    if (InRound(round, me)) transfer.send = BytesOf(slice(rank), cut.slices[rank].size());
    if (InRound(round, rank)) transfer.receive = BytesOf(from(rank), n);
  }
  if (n == 0) return handed;
  for (const plan::LeafInTurn& leaf : round) {
    const float* const part = leaf.rank == me ? slice(me) : from(leaf.rank);
    TY_RETURN_IF_ERROR(Push(leaf, part, n, at, handed.add_up));
  }
  return handed;
}

kernels::Kernels AcrossGpuOwners::WithExchanges(const kernels::Kernels& micro,
                                                const StepPart& part) {
  kernels::Device& device = session_.device();
  kernels::Kernels all = WithStarts(
      micro, order_,
      [this, &device, round = part.round](size_t bucket, kernels::Stream& stream) {
        device.RecordEvent(*ready_[bucket], stream);
        device.StreamWait(*exchanges_, *ready_[bucket]);
        if (started_.ok()) started_ = HandOut(bucket, round, *exchanges_);
        device.RecordEvent(*done_[bucket], *exchanges_);
      },
      [this, &device](size_t bucket, kernels::Stream& stream) {
        device.StreamWait(stream, *done_[bucket]);
      });
  all.push_back({.launch = [this, round = part.round](kernels::Stream& stream) {
    if (started_.ok()) started_ = HandOutLosses(round, stream);
  }});
  return all;
}

absl::Status AcrossGpuOwners::HandOut(size_t bucket, int64_t round, kernels::Stream& stream) {
  const Handed& handed = handed_[bucket][round];
  TY_RETURN_IF_ERROR(links_.Exchange(stream, handed.transfers));
  for (const kernels::Kernel& add : handed.add_up) add.launch(stream);
  return absl::OkStatus();
}

absl::Status AcrossGpuOwners::HandOutLosses(int64_t round, kernels::Stream& stream) {
  const size_t n = places_[0].sums.size();
  std::vector<absl::Span<char>> of_ranks;
  for (int rank = 0; rank < gang_.size(); ++rank) {
    of_ranks.push_back(BytesOf(losses_ + rank * n, n));
  }
  const absl::Span<char> own = of_ranks[gang_.rank()];
  session_.device().Copy(stream, own.data(), places_[0].sums.data(), own.size());
  TY_RETURN_IF_ERROR(links_.AllGather(stream, of_ranks));
  for (const kernels::Kernel& add : add_losses_[round]) add.launch(stream);
  return absl::OkStatus();
}

absl::Status AcrossGpuOwners::AwaitSums() {
  TY_RETURN_IF_ERROR(Started());
  links_.SetPatience(patience_.Next(absl::Now()));
  for (size_t round = 0; round < rounds_.size(); ++round) {
    if (InRound(rounds_[round], gang_.rank())) continue;
    for (const plan::ReadyBucket& ready : order_) {
      TY_RETURN_IF_ERROR(
          OfGang(HandOut(ready.bucket, static_cast<int64_t>(round), session_.stream())));
    }
    TY_RETURN_IF_ERROR(OfGang(HandOutLosses(static_cast<int64_t>(round), session_.stream())));
  }
  const absl::Span<double> sums = places_[0].sums;
  session_.device().Copy(session_.stream(), sums.data(), losses_ + gang_.size() * sums.size(),
                         sums.size() * sizeof(double));
  return absl::OkStatus();
}

absl::Status AcrossGpuOwners::CompleteLeaves() {
  const int me = gang_.rank();
  for (const plan::SharedLeaf& leaf : plan::DividedLeaves(session_.plan().buckets)) {
    if (leaf.owner != me && leaf.holder != me) continue;
    absl::Span<float> from, to;
    if (leaf.holder == me) from = shares_.Find(leaf.elements, /*in_slice=*/true);
    if (leaf.owner == me) to = shares_.Find(leaf.elements, /*in_slice=*/false);
    if (leaf.owner == leaf.holder) {
      session_.device().Copy(session_.stream(), to.data(), from.data(),
                             from.size() * sizeof(float));
      continue;
    }
    Transfer transfer{.peer = static_cast<int>(leaf.owner == me ? leaf.holder : leaf.owner)};
    if (leaf.owner == me) transfer.receive = BytesOf(to.data(), to.size());
    if (leaf.holder == me) transfer.send = BytesOf(from.data(), from.size());
    TY_RETURN_IF_ERROR(OfGang(links_.Exchange(session_.stream(), {&transfer, 1})));
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
