#include "executor/engine/groups.h"

#include <algorithm>
#include <optional>

#include "storage/base/status.h"

namespace trainyard::engine {

namespace {

// Which of `members` is `rank`.
int PlaceOf(int rank, const std::vector<int>& members) {
  const auto mine = std::find(members.begin(), members.end(), rank);
  TY_CHECK(mine != members.end(), "rank ", rank, " is none of the members");
  return static_cast<int>(mine - members.begin());
}

}  // namespace

PartOfCommunicator::PartOfCommunicator(Communicator& whole, std::vector<int> members)
    : whole_(whole), members_(std::move(members)), rank_(PlaceOf(whole.rank(), members_)) {}

absl::Status PartOfCommunicator::Exchange(absl::Span<const Transfer> transfers) {
  transfers_.assign(transfers.begin(), transfers.end());
  for (Transfer& transfer : transfers_) transfer.peer = members_[transfer.peer];
  return whole_.Exchange(transfers_);
}

PartOfLinks::PartOfLinks(DeviceCommunicator& whole, std::vector<int> members)
    : whole_(whole), members_(std::move(members)), rank_(PlaceOf(whole.rank(), members_)) {}

absl::Status PartOfLinks::Exchange(kernels::Stream& stream, absl::Span<const Transfer> transfers) {
  std::vector<Transfer> between(transfers.begin(), transfers.end());
  for (Transfer& transfer : between) transfer.peer = members_[transfer.peer];
  return whole_.Exchange(stream, between);
}

absl::Status PartOfLinks::AllGather(kernels::Stream& stream,
                                    absl::Span<const absl::Span<char>> parts) {
  TY_CHECK(static_cast<int>(parts.size()) == size(), parts.size(), " parts of ", size(), " ranks");
  std::vector<Transfer> transfers;
  for (int other = 0; other < size(); ++other) {
    if (other == rank_) continue;
    transfers.push_back({.peer = other, .send = parts[rank_], .receive = parts[other]});
  }
  return Exchange(stream, transfers);
}

class Groups::Part {
 public:
  Part(const Gang& all, const std::vector<int>& members) : hosts_(all.communicator(), members) {
    if (all.links() != nullptr) links_.emplace(*all.links(), members);
  }
  Gang gang() { return Gang(&hosts_, links_ ? &*links_ : nullptr); }

 private:
  PartOfCommunicator hosts_;
  std::optional<PartOfLinks> links_;
};

Groups::Groups(const Gang& all, int sharing) : all_(all), data_(all) {
  if (sharing == 1) return;
  TY_CHECK(all.size() % sharing == 0, all.size(), " ranks in groups of ", sharing);
  std::vector<int> data, shards;
  for (int rank = 0; rank < all.size(); ++rank) {
    if (rank % sharing == all.rank() % sharing) data.push_back(rank);
    if (rank / sharing == all.rank() / sharing) shards.push_back(rank);
  }
  of_shards_ = std::make_shared<Part>(all, shards);
  shards_ = of_shards_->gang();
  data_ = Gang();
  if (data.size() == 1) return;
  of_data_ = std::make_shared<Part>(all, data);
  data_ = of_data_->gang();
}

}  // namespace trainyard::engine
