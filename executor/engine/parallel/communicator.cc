#include "executor/engine/parallel/communicator.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::engine {

absl::Status Communicator::AllGather(absl::Span<const absl::Span<char>> parts) {
  TY_CHECK(static_cast<int>(parts.size()) == size(), parts.size(), " parts of ", size(), " ranks");
  std::vector<Transfer> transfers;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    transfers.push_back({.peer = r, .send = parts[rank()], .receive = parts[r]});
  }
  return Exchange(transfers);
}

absl::Status Communicator::Broadcast(int root, absl::Span<char> bytes) {
  TY_CHECK(root >= 0 && root < size(), "rank ", root, " of ", size());
  std::vector<Transfer> transfers;
  if (rank() != root) {
    transfers.push_back({.peer = root, .receive = bytes});
  } else {
    for (int r = 0; r < size(); ++r) {
      if (r != root) transfers.push_back({.peer = r, .send = bytes});
    }
  }
  return Exchange(transfers);
}

absl::Status Communicator::Barrier() {
  const char here = 1;
  std::vector<char> there(size());
  std::vector<Transfer> transfers;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    transfers.push_back({.peer = r,
                         .send = absl::Span<const char>(&here, 1),
                         .receive = absl::Span<char>(&there[r], 1)});
  }
  return Exchange(transfers);
}

}  // namespace trainyard::engine
