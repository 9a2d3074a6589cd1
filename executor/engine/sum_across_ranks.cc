#include "executor/engine/sum_across_ranks.h"

#include <algorithm>
#include <cstring>

#include "executor/engine/parallel/shared_memory.h"
#include "executor/plan/cost/gang_memory.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// What is received of a piece stays in a core's cache until it is added up.
constexpr int64_t kPiece = plan::kExchangedElements;

static_assert(plan::kLinkBytes >= static_cast<int64_t>(SharedMemory::kBytes));

// What is left of `slice` from `begin` elements after its start, at most a piece.
absl::Span<float> Piece(absl::Span<float> values, const plan::ElementRange& slice, int64_t begin) {
  const int64_t first = std::min(slice.first + begin, slice.end);
  return values.subspan(first, std::min(kPiece, slice.end - first));
}

}  // namespace

SumAcrossRanks::SumAcrossRanks(Communicator& gang, int64_t logical_ranks)
    : gang_(gang), all_(SumsOfGang(logical_ranks, gang.size())) {
  for (int rank = 0; rank < gang.size(); ++rank) most_ = std::max(most_, all_.of(rank));
}

template <typename T>
void SumAcrossRanks::AddUp(absl::Span<T* const> parts, size_t n) const {
  for (const auto& [to, from] : all_.folds) {
    T* const total = parts[to];
    const T* const part = parts[from];
    for (size_t i = 0; i < n; ++i) total[i] += part[i];
  }
}

// They are few: every rank is sent all of them, and adds them up itself.
absl::Status SumAcrossRanks::AddSums(absl::Span<const PartialSum> own) {
  TY_CHECK(static_cast<int64_t>(own.size()) == this->own(), own.size(), " sums of a rank that has ",
           this->own());
  const size_t n = own[0].sums.size();
  received_sums_.resize(all_.all() * n);
  const auto of_rank = [&](int rank) {
    return absl::MakeSpan(received_sums_.data() + all_.first[rank] * n, all_.of(rank) * n);
  };
  const int me = gang_.rank();
  for (size_t i = 0; i < own.size(); ++i) {
    std::copy(own[i].sums.begin(), own[i].sums.end(), of_rank(me).begin() + i * n);
  }
  transfers_.clear();
  for (int rank = 0; rank < gang_.size(); ++rank) {
    if (rank == me) continue;
    transfers_.push_back(
        {.peer = rank, .send = Sent(of_rank(me)), .receive = Received(of_rank(rank))});
  }
  TY_RETURN_IF_ERROR(gang_.Exchange(transfers_));
  sum_parts_.clear();
  for (int64_t i = 0; i < all_.all(); ++i) sum_parts_.push_back(received_sums_.data() + i * n);
  AddUp<double>(sum_parts_, n);
  std::copy(sum_parts_[0], sum_parts_[0] + n, own[0].sums.begin());
  return absl::OkStatus();
}

template <typename F>
absl::Status SumAcrossRanks::ForEachPiece(const plan::Bucket& bucket, const F& piece) {
  int64_t longest = 0;
  for (const plan::ElementRange& slice : bucket.slices) longest = std::max(longest, slice.size());
  for (int64_t begin = 0; begin < longest; begin += kPiece) TY_RETURN_IF_ERROR(piece(begin));
  return absl::OkStatus();
}

absl::Status SumAcrossRanks::Reduce(const plan::Bucket& bucket, absl::Span<const PartialSum> own) {
  received_.resize(all_.all() * kPiece);  // once: not where gradients are sharded
  return ForEachPiece(bucket, [&](int64_t begin) { return ReducePiece(bucket, own, begin); });
}

absl::Status SumAcrossRanks::ReducePiece(const plan::Bucket& bucket,
                                         absl::Span<const PartialSum> own, int64_t begin) {
  const int me = gang_.rank();
  const absl::Span<float> mine = Piece(own[0].gradients, bucket.slices[me], begin);
  parts_.clear();
  for (int rank = 0; rank < gang_.size(); ++rank) {
    for (int64_t i = 0; i < all_.of(rank); ++i) {
      parts_.push_back(rank == me ? Piece(own[i].gradients, bucket.slices[me], begin).data()
                                  : received_.data() + parts_.size() * kPiece);
    }
  }
  for (int64_t i = 0; i < most_; ++i) {
    transfers_.clear();
    for (int rank = 0; rank < gang_.size(); ++rank) {
      if (rank == me) continue;
      Transfer transfer{.peer = rank};
      if (i < static_cast<int64_t>(own.size())) {
        transfer.send = Sent(Piece(own[i].gradients, bucket.slices[rank], begin));
      }
      if (i < all_.of(rank)) {
        transfer.receive = Received(absl::MakeSpan(parts_[all_.first[rank] + i], mine.size()));
      }
      transfers_.push_back(transfer);
    }
    TY_RETURN_IF_ERROR(gang_.Exchange(transfers_));
  }
  AddUp<float>(parts_, mine.size());
  if (parts_[0] != mine.data()) std::copy(parts_[0], parts_[0] + mine.size(), mine.begin());
  return absl::OkStatus();
}

absl::Status SumAcrossRanks::Gather(const plan::Bucket& bucket, const plan::Handing& handing,
                                    absl::Span<float> values) {
  const int me = gang_.rank();
  return ForEachPiece(bucket, [&](int64_t begin) {
    transfers_.clear();
    for (int rank = 0; rank < gang_.size(); ++rank) {
      Transfer transfer{.peer = rank};
      if (handing.to[rank]) transfer.send = Sent(Piece(values, bucket.slices[me], begin));
      if (handing.from[rank])
        transfer.receive = Received(Piece(values, bucket.slices[rank], begin));
      if (handing.to[rank] || handing.from[rank]) transfers_.push_back(transfer);
    }
    return gang_.Exchange(transfers_);
  });
}

}  // namespace trainyard::engine
