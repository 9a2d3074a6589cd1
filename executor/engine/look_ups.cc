#include "executor/engine/look_ups.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int32_t kNoRow = -1;

template <typename T>
absl::Span<T> InPlace(Session& session, plan::TensorId id) {
  const plan::Plan& plan = session.plan();
  const absl::Span<char> memory =
      session.InMemory({.offset = plan.offsets[id], .bytes = plan.tensors[id].bytes()});
  return {reinterpret_cast<T*>(memory.data()), memory.size() / sizeof(T)};
}

int64_t WidthOf(const plan::Plan& plan) {
  return plan.tensors[plan.owned_rows.front().weights].dims[1];
}

// The first row of each of `shares` shares, which as many ranks have, and the number of rows.
std::vector<int64_t> FirstRows(const plan::Bucket& table, int64_t shares, int64_t width) {
  std::vector<int64_t> first;
  for (int64_t share = 0; share < shares; ++share) {
    first.push_back((table.slices[share].first - table.elements.first) / width);
  }
  first.push_back(table.elements.size() / width);
  return first;
}

}  // namespace

LookUps::LookUps(Session& session, const Gang& gang) : session_(session), gang_(gang) {
  const plan::Plan& plan = session.plan();
  if (plan.tables.empty()) return;
  width_ = WidthOf(plan);
  shares_ = plan::SlicesFor(gang.size(), plan.owners);
  for (const plan::Bucket& table : plan.tables) {
    first_rows_.push_back(FirstRows(table, shares_, width_));
  }
  for (const plan::OwnedRun& rows : plan.owned_rows) {
    own_.push_back(InPlace<float>(session, rows.weights).data());
  }
  for (const plan::LookUp& look_up : {plan.micro_look_up, plan.evaluate_look_up}) {
    if (look_up.rows == plan::kNone) continue;
    const auto ids = static_cast<size_t>(plan.tensors[look_up.ids].elements());
    const auto rows = static_cast<size_t>(plan.tensors[look_up.rows].elements());
    ids_.reserve(gang.size() * ids);
    owners_.reserve(ids);
    received_.reserve(rows);
    sent_.reserve((gang.size() - 1) * rows);
  }
}

int64_t LookUps::ShareWith(size_t t, int32_t id) const {
  const std::vector<int64_t>& first = first_rows_[t];
  if (id < 0 || id >= first.back()) return -1;
  // Shares without a row begin where the next one does.
  return std::upper_bound(first.begin(), first.end(), id) - first.begin() - 1;
}

int LookUps::SourceFor(int64_t share, int64_t rank) const {
  if (rank % shares_ == share) return static_cast<int>(rank);
  return static_cast<int>(plan::SourceOf(share, shares_, rank, gang_.size()));
}

const float* LookUps::Own(size_t t, int32_t id) const {
  const int64_t share = gang_.rank() % shares_;
  const int64_t first = first_rows_[t][share], end = first_rows_[t][share + 1];
  if (id < first || id >= end) return nullptr;
  return own_[t] + (id - first) * width_;
}

absl::Status LookUps::AskForRows(const plan::LookUp& look_up, bool mine) {
  const int ranks = gang_.size(), me = gang_.rank();
  const auto n = static_cast<size_t>(session_.plan().tensors[look_up.ids].elements());
  ids_.resize(ranks * n);
  std::vector<absl::Span<int32_t>> of;
  std::vector<absl::Span<char>> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    of.push_back(absl::MakeSpan(ids_).subspan(rank * n, n));
    parts.push_back(Received(of.back()));
  }
  if (mine) {
    std::ranges::copy(InPlace<int32_t>(session_, look_up.ids), of[me].begin());
  } else {
    std::ranges::fill(of[me], kNoRow);
  }
  return gang_.communicator().AllGather(parts);
}

absl::Status LookUps::Exchange(const plan::LookUp& look_up, bool mine) {
  TY_RETURN_IF_ERROR(AskForRows(look_up, mine));
  const size_t tables = first_rows_.size(), ranks = gang_.size(), me = gang_.rank();
  const size_t n = ids_.size() / ranks;
  owners_.resize(n);
  std::vector<int64_t> wanted(ranks);  // elements, by rank that has them
  for (size_t i = 0; i < n && mine; ++i) {
    const int32_t id = ids_[me * n + i];
    const int64_t share = ShareWith(i % tables, id);
    owners_[i] = share < 0 ? -1 : SourceFor(share, gang_.rank());
    if (owners_[i] < 0) {
      return WithFault(Fault::kInternal,
                       absl::InternalError(absl::StrCat("table ", i % tables, " has no row ", id)));
    }
    wanted[owners_[i]] += width_;
  }
  sent_.clear();
  received_from_.assign(1, 0);
  std::vector<size_t> sent_to = {0};
  for (size_t rank = 0; rank < ranks; ++rank) {
    received_from_.push_back(received_from_.back() + (rank == me ? 0 : wanted[rank]));
    const bool asks = SourceFor(gang_.rank() % shares_, static_cast<int64_t>(rank)) == gang_.rank();
    for (size_t i = 0; i < n && rank != me && asks; ++i) {
      const float* const row = Own(i % tables, ids_[rank * n + i]);
      if (row != nullptr) sent_.insert(sent_.end(), row, row + width_);
    }
    sent_to.push_back(sent_.size());
  }
  received_.resize(received_from_.back());
  std::vector<Transfer> transfers;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto send =
        absl::MakeConstSpan(sent_).subspan(sent_to[rank], sent_to[rank + 1] - sent_to[rank]);
    const auto receive = absl::MakeSpan(received_).subspan(
        received_from_[rank], received_from_[rank + 1] - received_from_[rank]);
    if (send.empty() && receive.empty()) continue;
    transfers.push_back(
        {.peer = static_cast<int>(rank), .send = Sent(send), .receive = Received(receive)});
  }
  return gang_.communicator().Exchange(transfers);
}

void LookUps::Place(const plan::LookUp& look_up) {
  const size_t tables = first_rows_.size(), n = owners_.size(), me = gang_.rank();
  float* to = InPlace<float>(session_, look_up.rows).data();
  std::vector<int64_t> next = received_from_;  // by rank
  for (size_t i = 0; i < n; ++i, to += width_) {
    const int owner = owners_[i];
    if (owner == gang_.rank()) {
      std::copy_n(Own(i % tables, ids_[me * n + i]), width_, to);
    } else {
      std::copy_n(received_.data() + next[owner], width_, to);
      next[owner] += width_;
    }
  }
}

kernels::Kernel OwnRowsAlone(Session& session) {
  return {.launch = [&session](kernels::Stream&) {
    const plan::Plan& plan = session.plan();
    const int64_t width = WidthOf(plan);
    const auto tables = plan.tables.size();
    const absl::Span<int32_t> ids = InPlace<int32_t>(session, plan.row_ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t t = i % tables;
      const plan::ElementRange& own = plan.owned_rows[t].elements;
      const int64_t first = (own.first - plan.tables[t].elements.first) / width;
      const int64_t row = ids[i] - first;
      ids[i] =
          ids[i] >= 0 && row >= 0 && row < own.size() / width ? static_cast<int32_t>(row) : kNoRow;
    }
  }};
}

}  // namespace trainyard::engine
