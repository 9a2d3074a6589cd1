#include "executor/engine/parallel/communicator.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr size_t kManyBytes = 256 << 10;

}  // namespace

absl::Status Communicator::ExchangeFor(Collective collective,
                                       absl::Span<const Transfer> transfers) {
  collective_ = collective;
  const absl::Status status = Exchange(transfers);
  collective_ = Collective::kExchange;
  return status;
}

absl::Status Communicator::AllGather(absl::Span<const absl::Span<char>> parts) {
  TY_CHECK(static_cast<int>(parts.size()) == size(), parts.size(), " parts of ", size(), " ranks");
  std::vector<Transfer> transfers;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    transfers.push_back({.peer = r, .send = parts[rank()], .receive = parts[r]});
  }
  return ExchangeFor(Collective::kAllGather, transfers);
}

absl::Status Communicator::Broadcast(int root, absl::Span<char> bytes) {
  TY_CHECK(root >= 0 && root < size(), "rank ", root, " of ", size());
  // Where there is much to send, the root sends each rank another piece, and then the ranks send
  // each other theirs: no rank sends more than twice the bytes.
  const bool in_pieces = size() > 2 && bytes.size() >= kManyBytes;
  const auto piece = [&](int r) {
    if (!in_pieces) return bytes;
    const size_t begin = bytes.size() / size() * r;
    return r == size() - 1 ? bytes.subspan(begin) : bytes.subspan(begin, bytes.size() / size());
  };
  std::vector<Transfer> from_root;
  std::vector<Transfer> between;
  if (rank() != root) from_root.push_back({.peer = root, .receive = piece(rank())});
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    if (rank() == root) from_root.push_back({.peer = r, .send = piece(r)});
    const bool to_root = r == root;
    between.push_back({.peer = r,
                       .send = to_root ? absl::Span<const char>() : piece(rank()),
                       .receive = rank() == root ? absl::Span<char>() : piece(r)});
  }
  TY_RETURN_IF_ERROR(ExchangeFor(Collective::kBroadcast, from_root));
  return in_pieces ? ExchangeFor(Collective::kBroadcast, between) : absl::OkStatus();
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
  return ExchangeFor(Collective::kBarrier, transfers);
}

}  // namespace trainyard::engine
