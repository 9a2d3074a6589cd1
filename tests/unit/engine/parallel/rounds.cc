#include "tests/unit/engine/parallel/rounds.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::engine::testing {

absl::Status ExchangeAll(Communicator& communicator, uint64_t seed,
                         const std::function<size_t(int from, int to)>& bytes) {
  const int self = communicator.rank();
  std::vector<std::string> sent(communicator.size());
  std::vector<std::string> received(communicator.size());
  std::vector<Transfer> transfers;
  for (int r = 0; r < communicator.size(); ++r) {
    sent[r] = Content(seed, self, r, bytes(self, r));
    received[r].resize(bytes(r, self));
    transfers.push_back({.peer = r, .send = sent[r], .receive = absl::MakeSpan(received[r])});
  }
  TY_RETURN_IF_ERROR(communicator.Exchange(transfers));
  for (int r = 0; r < communicator.size(); ++r) {
    if (received[r] != Content(seed, r, self, bytes(r, self))) {
      return absl::DataLossError(absl::StrCat("what came from rank ", r, " is not what it sent"));
    }
  }
  return absl::OkStatus();
}

absl::Status GatherAll(Communicator& communicator, uint64_t seed, size_t bytes) {
  std::vector<std::string> parts(communicator.size());
  std::vector<absl::Span<char>> spans;
  for (int r = 0; r < communicator.size(); ++r) {
    parts[r] = r == communicator.rank() ? Content(seed, r, r, bytes) : std::string(bytes, '-');
    spans.push_back(absl::MakeSpan(parts[r]));
  }
  TY_RETURN_IF_ERROR(communicator.AllGather(spans));
  for (int r = 0; r < communicator.size(); ++r) {
    if (parts[r] != Content(seed, r, r, bytes)) {
      return absl::DataLossError(absl::StrCat("AllGather: not what rank ", r, " contributed"));
    }
  }
  return absl::OkStatus();
}

absl::Status BroadcastOne(Communicator& communicator, uint64_t seed, int root, size_t bytes) {
  std::string content =
      communicator.rank() == root ? Content(seed, root, root, bytes) : std::string(bytes, '-');
  TY_RETURN_IF_ERROR(communicator.Broadcast(root, absl::MakeSpan(content)));
  return content == Content(seed, root, root, bytes)
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat("Broadcast: not what rank ", root, " has"));
}

absl::Status RandomRounds(Communicator& communicator, int rounds) {
  std::minstd_rand random(static_cast<unsigned>(communicator.size()));
  for (int round = 0; round < rounds; ++round) {
    const uint64_t seed = random();
    const auto size = [](uint64_t draw) -> size_t {
      const size_t kLimits[] = {1, 64, 5'000, 100'000};
      return draw % 97 == 0 ? 1'500'000 : (draw >> 8) % kLimits[draw % 4];
    };
    switch (random() % 4) {
      case 0:
      case 1:
        TY_RETURN_IF_ERROR(ExchangeAll(communicator, seed, [&](int from, int to) {
          return from == to ? 3 : size(seed + 31 * from + 17 * to);
        }));
        break;
      case 2:
        TY_RETURN_IF_ERROR(GatherAll(communicator, seed, size(seed)));
        break;
      case 3:
        TY_RETURN_IF_ERROR(BroadcastOne(communicator, seed,
                                        static_cast<int>(seed % communicator.size()), size(seed)));
        TY_RETURN_IF_ERROR(communicator.Barrier());
        break;
    }
  }
  return absl::OkStatus();
}

std::string Name(const std::vector<Rendezvous>& ranks, int rank) {
  return absl::StrCat("rank ", rank, " (", ranks[rank].addresses[rank], ")");
}

absl::Status ExchangeWithoutEnd(Communicator& communicator, const Gang::Say& say) {
  std::vector<std::string> parts(communicator.size(), std::string(3'000'000, 'x'));
  std::vector<absl::Span<char>> spans;
  for (std::string& part : parts) spans.push_back(absl::MakeSpan(part));
  for (int round = 0;; ++round) {
    const absl::Status status = communicator.AllGather(spans);
    if (!status.ok()) {
      // It stays failed, with the same words.
      if (communicator.Barrier() != status) return absl::InternalError("another failure");
      return status;
    }
    if (round == 0) say("exchanged");
  }
}

}  // namespace trainyard::engine::testing
