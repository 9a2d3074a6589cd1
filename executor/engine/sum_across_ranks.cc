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

// Shares begin with a line of the cache.
constexpr int64_t kGrain = 16;

template <typename T>
absl::Span<const char> Sent(absl::Span<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
absl::Span<char> Received(absl::Span<T> values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(T)};
}

// Adds up `parts`, the sums of `roots`, all as long: the result is in the first.
template <typename T>
void AddUp(int64_t logical_ranks, const std::vector<plan::LeafRange>& roots,
           const std::vector<T*>& parts, size_t n) {
  plan::FoldStack stack(logical_ranks);
  std::vector<T*> waiting;
  for (size_t i = 0; i < roots.size(); ++i) {
    waiting.push_back(parts[i]);
    for (int64_t folds = stack.Push(roots[i]); folds > 0; --folds) {
      const T* const part = waiting.back();
      waiting.pop_back();
      T* const total = waiting.back();
      for (size_t k = 0; k < n; ++k) total[k] += part[k];
    }
  }
  TY_CHECK(waiting.size() == 1, waiting.size(), " sums are left");
}

}  // namespace

SumAcrossRanks::SumAcrossRanks(Communicator& gang, int64_t logical_ranks)
    : gang_(gang), logical_ranks_(logical_ranks) {
  int64_t before = 0;
  for (int rank = 0; rank < gang.size(); ++rank) {
    roots_.push_back(
        plan::RootsOf(logical_ranks, plan::HostedBy(logical_ranks, gang.size(), rank)));
    first_root_.push_back(before);
    const auto count = static_cast<int64_t>(roots_.back().size());
    before += count;
    most_roots_ = std::max(most_roots_, count);
  }
  received_.resize(before * kPiece);
}

absl::Status SumAcrossRanks::Run(absl::Span<const PartialSumOnHost> own) {
  TY_CHECK(static_cast<int64_t>(own.size()) == this->own(), own.size(), " sums of a rank that has ",
           this->own());
  TY_RETURN_IF_ERROR(AddSums(own));
  return AddGradients(own);
}

// They are few: every rank is sent all of them, and adds them up itself.
absl::Status SumAcrossRanks::AddSums(absl::Span<const PartialSumOnHost> own) {
  const size_t n = own[0].sums.size();
  std::vector<plan::LeafRange> roots;
  for (const auto& of_rank : roots_) roots.insert(roots.end(), of_rank.begin(), of_rank.end());
  received_sums_.resize(roots.size() * n);
  const auto at = [&](int64_t root, int64_t count) {
    return absl::MakeSpan(received_sums_.data() + root * n, count * n);
  };
  const int me = gang_.rank();
  for (size_t i = 0; i < own.size(); ++i) {
    std::copy(own[i].sums.begin(), own[i].sums.end(), at(first_root_[me] + i, 1).begin());
  }
  const absl::Span<double> mine = at(first_root_[me], own.size());
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < gang_.size(); ++rank) {
    if (rank == me) continue;
    transfers.push_back(
        {.peer = rank,
         .send = Sent(mine),
         .receive = Received(at(first_root_[rank], static_cast<int64_t>(roots_[rank].size())))});
  }
  TY_RETURN_IF_ERROR(gang_.Exchange(transfers));
  std::vector<double*> parts;
  for (size_t i = 0; i < roots.size(); ++i) parts.push_back(received_sums_.data() + i * n);
  AddUp(logical_ranks_, roots, parts, n);
  std::copy(parts[0], parts[0] + n, own[0].sums.begin());
  return absl::OkStatus();
}

absl::Span<float> SumAcrossRanks::Piece(absl::Span<float> gradients, int64_t rank,
                                        int64_t begin) const {
  const auto n = static_cast<int64_t>(gradients.size());
  const auto start = [&](int64_t r) {
    return std::min(n, (n * r / gang_.size() + kGrain - 1) / kGrain * kGrain);
  };
  const int64_t first = std::min(start(rank) + begin, start(rank + 1));
  return gradients.subspan(first, std::min(kPiece, start(rank + 1) - first));
}

absl::Status SumAcrossRanks::AddGradients(absl::Span<const PartialSumOnHost> own) {
  const auto longest = static_cast<int64_t>(own[0].gradients.size()) / gang_.size() + kGrain;
  for (int64_t begin = 0; begin < longest; begin += kPiece) {
    TY_RETURN_IF_ERROR(AddPiece(own, begin));
  }
  return absl::OkStatus();
}

absl::Status SumAcrossRanks::AddPiece(absl::Span<const PartialSumOnHost> own, int64_t begin) {
  const int me = gang_.rank();
  const absl::Span<float> mine = Piece(own[0].gradients, me, begin);
  std::vector<plan::LeafRange> roots;
  std::vector<float*> parts;
  for (int rank = 0; rank < gang_.size(); ++rank) {
    for (size_t i = 0; i < roots_[rank].size(); ++i) {
      parts.push_back(rank == me ? Piece(own[i].gradients, me, begin).data()
                                 : received_.data() + roots.size() * kPiece);
      roots.push_back(roots_[rank][i]);
    }
  }
  std::vector<Transfer> transfers;
  for (int64_t i = 0; i < most_roots_; ++i) {
    transfers.clear();
    for (int rank = 0; rank < gang_.size(); ++rank) {
      if (rank == me) continue;
      Transfer transfer{.peer = rank};
      if (i < static_cast<int64_t>(own.size())) {
        transfer.send = Sent(Piece(own[i].gradients, rank, begin));
      }
      if (i < static_cast<int64_t>(roots_[rank].size())) {
        transfer.receive = Received(absl::MakeSpan(parts[first_root_[rank] + i], mine.size()));
      }
      transfers.push_back(transfer);
    }
    TY_RETURN_IF_ERROR(gang_.Exchange(transfers));
  }
  AddUp(logical_ranks_, roots, parts, mine.size());
  if (parts[0] != mine.data()) std::copy(parts[0], parts[0] + mine.size(), mine.begin());

  transfers.clear();
  for (int rank = 0; rank < gang_.size(); ++rank) {
    if (rank == me) continue;
    transfers.push_back({.peer = rank,
                         .send = Sent(mine),
                         .receive = Received(Piece(own[0].gradients, rank, begin))});
  }
  return gang_.Exchange(transfers);
}

}  // namespace trainyard::engine
