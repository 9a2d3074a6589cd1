#include "executor/engine/sum_to_owners.h"

#include <algorithm>

#include "executor/plan/cost/gang_memory.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// What is left of `slice` from `begin` elements after its start, at most a piece.
plan::ElementRange PieceOf(const plan::ElementRange& slice, int64_t begin) {
  const int64_t first = std::min(slice.first + begin, slice.end);
  return {first, std::min(first + plan::kExchangedElements, slice.end)};
}

// Puts `part`, of `n`, on top of the places, `at(place)`, as `leaf` says.
template <typename T, typename At>
void Push(const plan::LeafInTurn& leaf, const T* part, size_t n, const At& at) {
  if (leaf.folds == 0) {
    T* const top = at(leaf.place);
    std::copy_n(part, n, top);
    return;
  }
  for (int64_t fold = 0; fold < leaf.folds; ++fold) {
    T* const total = at(leaf.place - fold - 1);
    const T* const top = fold == 0 ? part : at(leaf.place - fold);
    for (size_t i = 0; i < n; ++i) total[i] += top[i];
  }
}

}  // namespace

SumToOwners::SumToOwners(Communicator& gang, const plan::Plan& plan, absl::Span<char> shares)
    : gang_(gang),
      plan_(plan),
      shares_(plan, shares),
      rounds_(plan::RoundsInTurn(plan.logical_ranks, gang.size())),
      divided_(plan::DividedLeaves(plan.buckets)) {
  const int64_t most = MostPlaces(rounds_);
  received_.resize(gang.size() * plan::kExchangedElements);
  waiting_.resize(std::max<int64_t>(0, most - plan.share_places) * plan::kExchangedElements);
  sums_of_places_.resize(most);
}

template <typename Send, typename Receive>
absl::Status SumToOwners::Exchange(int64_t round, const Send& send, const Receive& receive) {
  transfers_.clear();
  const bool sends = InRound(rounds_[round], gang_.rank());
  for (int rank = 0; rank < gang_.size(); ++rank) {
    if (rank == gang_.rank()) continue;
    Transfer transfer{.peer = rank};
    if (sends) transfer.send = Sent(send(rank));
    if (InRound(rounds_[round], rank)) transfer.receive = Received(receive(rank));
    transfers_.push_back(transfer);
  }
  return gang_.Exchange(transfers_);
}

absl::Status SumToOwners::Reduce(size_t bucket, int64_t round, absl::Span<float> gradients) {
  int64_t longest = 0;
  for (const plan::ElementRange& slice : plan_.buckets[bucket].slices) {
    longest = std::max(longest, slice.size());
  }
  for (int64_t begin = 0; begin < longest; begin += plan::kExchangedElements) {
    TY_RETURN_IF_ERROR(ReducePiece(bucket, round, gradients, begin));
  }
  return absl::OkStatus();
}

absl::Status SumToOwners::ReducePiece(size_t bucket, int64_t round, absl::Span<float> gradients,
                                      int64_t begin) {
  const plan::Bucket& cut = plan_.buckets[bucket];
  const int me = gang_.rank();
  const plan::ElementRange mine = PieceOf(cut.slices[me], begin);
  const auto made = [&](int rank) {  // what this rank's logical rank made of the slice of `rank`
    const plan::ElementRange piece = PieceOf(cut.slices[rank], begin);
    return gradients.subspan(piece.first - cut.elements.first, piece.size());
  };
  const auto received = [&](int rank) {
    return absl::MakeSpan(received_).subspan(rank * plan::kExchangedElements, mine.size());
  };
  TY_RETURN_IF_ERROR(Exchange(round, made, received));
  if (mine.size() == 0) return absl::OkStatus();
  const auto at = [&](int64_t place) {
    return place < plan_.share_places
               ? shares_.At(bucket, place, mine.first)
               : &waiting_[(place - plan_.share_places) * plan::kExchangedElements];
  };
  for (const plan::LeafInTurn& leaf : rounds_[round]) {
    const int rank = static_cast<int>(leaf.rank);
    const absl::Span<float> part = rank == me ? made(me) : received(rank);
    Push(leaf, part.data(), part.size(), at);
  }
  return absl::OkStatus();
}

absl::Status SumToOwners::AddSums(int64_t round, absl::Span<double> own, size_t n) {
  received_sums_.resize(gang_.size() * n);
  for (std::vector<double>& place : sums_of_places_) place.resize(n);
  const auto received = [&](int rank) {
    return absl::MakeSpan(received_sums_).subspan(rank * n, n);
  };
  TY_RETURN_IF_ERROR(Exchange(
      round, [&](int) { return own; }, received));
  for (const plan::LeafInTurn& leaf : rounds_[round]) {
    const int rank = static_cast<int>(leaf.rank);
    const absl::Span<double> part = rank == gang_.rank() ? own : received(rank);
    Push(leaf, part.data(), n, [&](int64_t place) { return sums_of_places_[place].data(); });
  }
  return absl::OkStatus();
}

// Ranks that have nothing to do with a leaf go on to the next: all in the same order.
absl::Status SumToOwners::CompleteLeaves() {
  const int me = gang_.rank();
  for (const plan::SharedLeaf& leaf : divided_) {
    if (leaf.owner == me && leaf.holder == me) {
      const absl::Span<float> from = shares_.Find(leaf.elements, /*in_slice=*/true);
      std::copy(from.begin(), from.end(), shares_.Find(leaf.elements, /*in_slice=*/false).begin());
    } else if (leaf.owner == me) {
      const Transfer from{.peer = static_cast<int>(leaf.holder),
                          .receive = Received(shares_.Find(leaf.elements, /*in_slice=*/false))};
      TY_RETURN_IF_ERROR(gang_.Exchange({&from, 1}));
    } else if (leaf.holder == me) {
      const Transfer to{.peer = static_cast<int>(leaf.owner),
                        .send = Sent(shares_.Find(leaf.elements, /*in_slice=*/true))};
      TY_RETURN_IF_ERROR(gang_.Exchange({&to, 1}));
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
