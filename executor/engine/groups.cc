#include "executor/engine/groups.h"

#include <algorithm>

#include "storage/base/status.h"

namespace trainyard::engine {

PartOfCommunicator::PartOfCommunicator(Communicator& whole, std::vector<int> members)
    : whole_(whole), members_(std::move(members)) {
  const auto mine = std::find(members_.begin(), members_.end(), whole.rank());
  TY_CHECK(mine != members_.end(), "rank ", whole.rank(), " is none of the members");
  rank_ = static_cast<int>(mine - members_.begin());
}

absl::Status PartOfCommunicator::Exchange(absl::Span<const Transfer> transfers) {
  transfers_.assign(transfers.begin(), transfers.end());
  for (Transfer& transfer : transfers_) transfer.peer = members_[transfer.peer];
  return whole_.Exchange(transfers_);
}

Groups::Groups(const Gang& all, int sharing) : all_(all), data_(all) {
  if (sharing == 1) return;
  TY_CHECK(all.size() % sharing == 0, all.size(), " ranks in groups of ", sharing);
  std::vector<int> data, shards;
  for (int rank = 0; rank < all.size(); ++rank) {
    if (rank % sharing == all.rank() % sharing) data.push_back(rank);
    if (rank / sharing == all.rank() / sharing) shards.push_back(rank);
  }
  of_shards_ = std::make_shared<PartOfCommunicator>(all.communicator(), std::move(shards));
  shards_ = Gang(of_shards_.get());
  data_ = Gang();
  if (data.size() == 1) return;
  of_data_ = std::make_shared<PartOfCommunicator>(all.communicator(), std::move(data));
  data_ = Gang(of_data_.get());
}

}  // namespace trainyard::engine
