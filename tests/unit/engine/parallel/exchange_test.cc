// What every communicator must do, over either kind of link, between real processes.

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "tests/unit/engine/parallel/gang.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class Exchange : public ::testing::TestWithParam<LinkKind> {
 protected:
  static std::vector<std::string> Run(int ranks, const CommunicatorBody& body) {
    return Gang(TestRendezvous(ranks, GetParam()), Meeting(body)).Results();
  }
};

INSTANTIATE_TEST_SUITE_P(Links, Exchange, ::testing::Values(LinkKind::kMemory, LinkKind::kTcp),
                         [](const ::testing::TestParamInfo<LinkKind>& info) {
                           return info.param == LinkKind::kMemory ? "Memory" : "Tcp";
                         });

// One exchange of every rank with every other one, of `bytes(from, to)` bytes, and a check of what
// came.
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

// The same calls on every rank, drawn from a seed: sizes from nothing to several rings.
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

TEST_P(Exchange, RandomRoundsBringEveryRankWhatWasSent) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const int rounds = ranks < 5 ? 60 : 20;
    EXPECT_THAT(
        Run(ranks, [rounds](Communicator& communicator,
                            const Gang::Say&) { return RandomRounds(communicator, rounds); }),
        Each(""))
        << ranks;
  }
}

TEST_P(Exchange, MessagesLargerThanAnyBufferCrossBothWays) {
  EXPECT_THAT(Run(3,
                  [](Communicator& communicator, const Gang::Say&) {
                    return ExchangeAll(communicator, 5, [](int, int) { return size_t{8} << 20; });
                  }),
              Each(""));
}

TEST_P(Exchange, ItUsesTheLinksItShould) {
  const std::string expected = GetParam() == LinkKind::kMemory
                                   ? "3 ranks: 2 others by shared memory, 0 by TCP"
                                   : "3 ranks: 0 others by shared memory, 2 by TCP";
  EXPECT_THAT(Run(3,
                  [&](Communicator& communicator, const Gang::Say&) {
                    return communicator.description() == expected
                               ? absl::OkStatus()
                               : absl::InternalError(communicator.description());
                  }),
              Each(""));
}

TEST_P(Exchange, RanksThatExchangeNothingNeedNotCall) {
  EXPECT_THAT(Run(3,
                  [](Communicator& communicator, const Gang::Say&) -> absl::Status {
                    const auto pair = [](int from, int to) -> size_t {
                      return from + to == 1 && from != to ? 1000 : 0;
                    };
                    if (communicator.rank() < 2) {
                      TY_RETURN_IF_ERROR(ExchangeAll(communicator, 1, pair));
                      TY_RETURN_IF_ERROR(communicator.Exchange({}));
                    }
                    return GatherAll(communicator, 2, 10);
                  }),
              Each(""));
}

TEST_P(Exchange, BytesThatWereSentAreCounted) {
  EXPECT_THAT(Run(3,
                  [](Communicator& communicator, const Gang::Say&) -> absl::Status {
                    TY_RETURN_IF_ERROR(GatherAll(communicator, 1, 1000));
                    TY_RETURN_IF_ERROR(BroadcastOne(communicator, 1, 0, 10));
                    const int64_t expected = 2000 + (communicator.rank() == 0 ? 20 : 0);
                    return communicator.bytes_sent() == expected
                               ? absl::OkStatus()
                               : absl::InternalError(absl::StrCat(communicator.bytes_sent()));
                  }),
              Each(""));
}

TEST_P(Exchange, ADifferentLengthIsAnErrorAtBothEnds) {
  EXPECT_THAT(
      Run(2,
          [](Communicator& communicator, const Gang::Say&) -> absl::Status {
            std::string sent(8, 'x');
            std::string received(communicator.rank() == 0 ? 16 : 8, '-');
            const Transfer transfer = {
                .peer = 1 - communicator.rank(), .send = sent, .receive = absl::MakeSpan(received)};
            TY_RETURN_IF_ERROR(communicator.Exchange({transfer}));
            return communicator.Barrier();
          }),
      Each(::testing::ContainsRegex("rank 1 .* sent 8 bytes where 16 were expected by rank 0 .*")));
}

TEST_P(Exchange, NothingWhereSomethingWasExpectedIsAnErrorAtBothEnds) {
  EXPECT_THAT(
      Run(2,
          [](Communicator& communicator, const Gang::Say&) -> absl::Status {
            std::string sent(communicator.rank() == 0 ? 8 : 0, 'x');
            std::string received(8, '-');
            const Transfer transfer = {
                .peer = 1 - communicator.rank(), .send = sent, .receive = absl::MakeSpan(received)};
            TY_RETURN_IF_ERROR(communicator.Exchange({transfer}));
            return communicator.Barrier();
          }),
      Each(::testing::ContainsRegex("rank 1 .* sent 0 bytes where 8 were expected by rank 0 .*")));
}

TEST_P(Exchange, TransfersThatMakeNoSenseFailEveryRank) {
  EXPECT_THAT(Run(2,
                  [](Communicator& communicator, const Gang::Say&) -> absl::Status {
                    if (communicator.rank() == 1) return communicator.Barrier();
                    return communicator.Exchange({{.peer = 7}});
                  }),
              Each(HasSubstr("exchanges with rank 7 of 2")));
}

// A rank that sleeps is woken by who sends to it, not by its clock, which would take minutes here.
TEST_P(Exchange, SmallMessagesWakeWhoWaitsForThem) {
  EXPECT_THAT(Run(3,
                  [](Communicator& communicator, const Gang::Say&) -> absl::Status {
                    for (int i = 0; i < 500; ++i) TY_RETURN_IF_ERROR(communicator.Barrier());
                    return absl::OkStatus();
                  }),
              Each(""));
}

TEST_P(Exchange, RanksMaySpinBeforeTheySleep) {
  auto ranks = TestRendezvous(2, GetParam());
  for (Rendezvous& rendezvous : ranks) rendezvous.spin = absl::Microseconds(50);
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) {
              return RandomRounds(communicator, 50);
            }));
  EXPECT_THAT(gang.Results(), Each(""));
}

bool NamedSharedMemory() {
  DIR* const folder = opendir("/dev/shm");
  bool found = false;
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder)) {
    found |= absl::StrContains(entry->d_name, "trainyard");
  }
  if (folder != nullptr) closedir(folder);
  return found;
}

int OpenFds() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST_P(Exchange, NothingIsLeftOpen) {
  auto ranks = TestRendezvous(3, GetParam());
  Gang gang(ranks, [](const Rendezvous& rendezvous, const Gang::Say&) -> std::string {
    const int before = OpenFds();
    {
      auto communicator = Meet(rendezvous);
      if (!communicator.ok()) return communicator.status().ToString();
      if (OpenFds() <= before) return "nothing was open meanwhile";
      if (NamedSharedMemory()) return "there is something in /dev/shm";
      const absl::Status status = GatherAll(**communicator, 1, 2'000'000);
      if (!status.ok()) return status.ToString();
    }
    // The listener was open before.
    const int left = OpenFds() - (before - 1);
    return left == 0 ? "" : absl::StrCat(left, " file descriptors are left");
  });
  EXPECT_THAT(gang.Results(), Each(""));
}

}  // namespace
}  // namespace trainyard::engine::testing
