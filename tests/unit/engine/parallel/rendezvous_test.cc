// Who meets, and who is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/engine/parallel/sockets.h"
#include "storage/base/file.h"
#include "tests/unit/engine/parallel/gang.h"
#include "tests/unit/engine/parallel/proxy.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::Status OneBarrier(Communicator& communicator, const Gang::Say&) {
  return communicator.Barrier();
}

TEST(Meet, RanksWithADifferentVersionLearnBoth) {
  auto ranks = TestRendezvous(2, LinkKind::kTcp);
  ranks[1].version = "other";
  Gang gang(ranks, Meeting(OneBarrier));
  const auto results = gang.Results();
  EXPECT_EQ(results[0], absl::StrCat("Meet: FAILED_PRECONDITION: rank 1 (", ranks[0].addresses[1],
                                     "): its version is \"other\", that of rank 0 is \"test\""));
  EXPECT_EQ(results[1], absl::StrCat("Meet: FAILED_PRECONDITION: rank 0 (", ranks[0].addresses[0],
                                     "): its version is \"test\", that of rank 1 is \"other\""));
}

TEST(Meet, WhoDoesNotKnowTheSecretIsRefusedAndTheOthersMeet) {
  const auto ranks = TestRendezvous(3, LinkKind::kTcp);
  Rendezvous stranger = ranks[2];
  stranger.secret = "guessed";
  stranger.listening_fd = -1;
  Gang early({ranks[0], ranks[1]}, Meeting(OneBarrier));
  Gang strangers({stranger}, Meeting(OneBarrier));
  EXPECT_THAT(strangers.Result(0), AllOf(StartsWith("Meet: PERMISSION_DENIED: rank "),
                                         HasSubstr("does not know the secret")));
  Gang late({ranks[2]}, Meeting(OneBarrier));
  EXPECT_THAT(late.Results(), Each(""));
  EXPECT_THAT(early.Results(), Each(""));
}

TEST(Meet, MissingRanksAreNamedAtTheDeadline) {
  auto ranks = TestRendezvous(4, LinkKind::kTcp);
  for (Rendezvous& rendezvous : ranks) rendezvous.timeout = absl::Milliseconds(500);
  Gang gang({ranks[0], ranks[2]}, Meeting(OneBarrier));
  for (const std::string& result : gang.Results()) {
    EXPECT_THAT(result, AllOf(StartsWith("Meet: DEADLINE_EXCEEDED"),
                              HasSubstr(absl::StrCat("rank 1 (", ranks[0].addresses[1], ")")),
                              HasSubstr(absl::StrCat("rank 3 (", ranks[0].addresses[3], ")"))));
  }
}

TEST(Meet, RanksOfGangsOfDifferentSizesDoNotMeet) {
  auto ranks = TestRendezvous(2, LinkKind::kTcp);
  ranks[1].addresses.push_back("127.0.0.1:1");
  Gang gang(ranks, Meeting(OneBarrier));
  EXPECT_THAT(gang.Result(0), AllOf(StartsWith("Meet: FAILED_PRECONDITION: rank 1 ("),
                                    HasSubstr("gang of 3 ranks, rank 0 of one of 2")));
  EXPECT_THAT(gang.Result(1), AllOf(StartsWith("Meet: FAILED_PRECONDITION: rank 0 ("),
                                    HasSubstr("gang of 2 ranks, rank 1 of one of 3")));
}

TEST(Meet, ARefusalReachesRanksThatHadNoPartInIt) {
  auto ranks = TestRendezvous(3, LinkKind::kTcp);
  ranks[2].version = "other";
  Gang gang(ranks, Meeting(OneBarrier));
  EXPECT_THAT(gang.Results(), Each(HasSubstr("its version is")));
}

TEST(Meet, APortInUseIsNamed) {
  auto ranks = TestRendezvous(2, LinkKind::kTcp);
  Rendezvous second = ranks[0];
  second.listening_fd = -1;
  Gang gang({second}, Meeting(OneBarrier));
  EXPECT_EQ(gang.Result(0), absl::StrCat("Meet: UNAVAILABLE: cannot listen on ",
                                         second.addresses[0], ": the port is in use"));
  close(ranks[0].listening_fd);
  close(ranks[1].listening_fd);
}

TEST(Meet, RanksBindTheirAddressesThemselvesAndNamesAreResolved) {
  auto ranks = TestRendezvous(3, LinkKind::kMemory);
  for (Rendezvous& rendezvous : ranks) {
    close(std::exchange(rendezvous.listening_fd, -1));
    for (std::string& address : rendezvous.addresses) {
      address = absl::StrCat("localhost", address.substr(address.find(':')));
    }
    if (rendezvous.rank == 1) rendezvous.interface_address = "0.0.0.0";
  }
  Gang gang(ranks, Meeting(OneBarrier));
  EXPECT_THAT(gang.Results(), Each(""));
}

// Each process of a rank keeps its first communicator, and with it the connections, until the end.
TEST(MeetSurvivors, ThoseThatAreLeftOfAGangMeetAnewAndAreNamedAsBefore) {
  for (const LinkKind kind : {LinkKind::kTcp, LinkKind::kMemory}) {
    const auto ranks = TestRendezvous(4, kind);
    Gang gang(ranks, [](const Rendezvous& rendezvous, const Gang::Say&) -> std::string {
      const auto met = Meet(rendezvous);
      if (!met.ok()) return met.status().ToString();
      const absl::Status all_have_met = (*met)->Barrier();
      if (rendezvous.rank == 1) _exit(66);
      const absl::Status broken = all_have_met.ok() ? (*met)->Barrier() : all_have_met;
      if (broken.ok()) return "nobody was lost";
      const auto again = MeetSurvivors(rendezvous, {0, 2, 3});
      if (!again.ok()) return again.status().ToString();
      const absl::Status together = (*again)->Barrier();
      return absl::StrCat(together.ToString(), ", ", (*again)->rank(), " of ", (*again)->size(),
                          ", ", (*again)->name(2).substr(0, 6));
    });
    const auto results = gang.Results();
    EXPECT_EQ(results[0], "OK, 0 of 3, rank 3");
    EXPECT_EQ(results[2], "OK, 1 of 3, rank 3");
    EXPECT_EQ(results[3], "OK, 2 of 3, rank 3");
  }
}

TEST(MeetSurvivors, RanksThatNameOthersDoNotMeet) {
  const auto ranks = TestRendezvous(3, LinkKind::kTcp);
  Gang gang(ranks, [](const Rendezvous& rendezvous, const Gang::Say&) -> std::string {
    const auto met = Meet(rendezvous);
    if (!met.ok() || rendezvous.rank == 2) return met.status().ToString();
    const std::vector<int> survivors =
        rendezvous.rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
    return std::string(MeetSurvivors(rendezvous, survivors).status().message());
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(gang.Result(rank), AllOf(HasSubstr("ranks 0,1 are left of test"),
                                         HasSubstr("ranks 0,1,2 are left of test")));
  }
}

TEST(Meet, OneRankWantsNoSharedMemoryAndTheOthersUseBothKinds) {
  auto ranks = TestRendezvous(4, LinkKind::kMemory);
  ranks[1].allow_shared_memory = false;
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
              std::string sent(3'000'000, static_cast<char>('a' + communicator.rank()));
              std::vector<std::string> parts(4, std::string(sent.size(), '-'));
              std::vector<absl::Span<char>> spans;
              parts[communicator.rank()] = sent;
              for (std::string& part : parts) spans.push_back(absl::MakeSpan(part));
              const absl::Status status = communicator.AllGather(spans);
              for (int r = 0; r < 4 && status.ok(); ++r) {
                if (parts[r] != std::string(sent.size(), static_cast<char>('a' + r))) {
                  return absl::DataLossError("not what was sent");
                }
              }
              return status.ok() ? absl::InternalError(communicator.description()) : status;
            }));
  for (const int r : {0, 2, 3}) {
    EXPECT_THAT(gang.Result(r), HasSubstr("2 others by shared memory, 1 by TCP"));
  }
  EXPECT_THAT(gang.Result(1), HasSubstr("0 others by shared memory, 3 by TCP"));
}

TEST(Meet, WhoGivesUpFirstTellsTheOthersWhy) {
  auto ranks = TestRendezvous(3, LinkKind::kMemory);
  // Rank 1 meets rank 0, and both wait for rank 2, which nobody starts.
  ranks[1].timeout = absl::Milliseconds(500);
  Gang gang({ranks[0], ranks[1]}, Meeting(OneBarrier));
  for (const std::string& result : gang.Results()) {
    EXPECT_THAT(
        result,
        AllOf(StartsWith("Meet: DEADLINE_EXCEEDED: rank 1 ("),
              HasSubstr(absl::StrCat("waited 500ms for rank 2 (", ranks[0].addresses[2], ")"))));
  }
  close(ranks[2].listening_fd);
}

// Connects to `address`, and says `words`.
FileDescriptor StrangerTo(const std::string& address, const std::string& words) {
  auto connection = ConnectTo(address, 0);
  EXPECT_TRUE(connection.ok()) << connection.status();
  pollfd wait{connection->get(), POLLOUT, 0};
  EXPECT_EQ(poll(&wait, 1, 5000), 1);
  if (!words.empty()) {
    EXPECT_TRUE(WriteAll(connection->get(), words, address).ok());
  }
  return *std::move(connection);
}

TEST(Meet, StrangersDoNotKeepRanksFromMeeting) {
  const auto ranks = TestRendezvous(3, LinkKind::kTcp);
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 300; ++i) {
    for (const int r : {0, 1}) {
      const std::string words[] = {"", std::string(1, 't'), "trainyrd" + std::string(184, '\xff'),
                                   "GET / HTTP/1.1\r\n\r\n", std::string(5000, '\0')};
      strangers.push_back(StrangerTo(ranks[0].addresses[r], words[i % 5]));
    }
  }
  Gang gang(ranks, Meeting(OneBarrier));
  EXPECT_THAT(gang.Results(), Each(""));
}

TEST(Meet, ARecordedHandshakeOpensNothing) {
  auto ranks = TestRendezvous(2, LinkKind::kTcp);
  std::string hello;
  std::string proof;
  {
    Proxy proxy(ranks[0].addresses[0], -1);
    auto through_proxy = ranks;
    through_proxy[1].addresses[0] = proxy.address();
    Gang gang(through_proxy, Meeting(OneBarrier));
    const std::string said = proxy.Recorded(192 + 32);
    ASSERT_EQ(said.size(), 224u);
    hello = said.substr(0, 192);
    proof = said.substr(192);
    EXPECT_THAT(gang.Results(), Each(""));
  }
  auto again = TestRendezvous(2, LinkKind::kTcp);
  again[0].secret = ranks[0].secret;
  again[0].timeout = absl::Milliseconds(800);
  Gang gang({again[0]}, Meeting(OneBarrier));
  const FileDescriptor stranger = StrangerTo(again[0].addresses[0], hello);
  std::string challenge;
  while (challenge.size() < 224) {
    pollfd wait{stranger.get(), POLLIN, 0};
    char buffer[224];
    ASSERT_EQ(poll(&wait, 1, 5000), 1);
    const ssize_t n = read(stranger.get(), buffer, sizeof buffer);
    ASSERT_GT(n, 0);
    challenge.append(buffer, n);
  }
  ASSERT_TRUE(WriteAll(stranger.get(), proof, "proof").ok());
  EXPECT_THAT(gang.Result(0), AllOf(StartsWith("Meet: DEADLINE_EXCEEDED"), HasSubstr("rank 1 ("),
                                    HasSubstr("refused because they did not know the secret: 1")));
  close(again[1].listening_fd);
}

TEST(Meet, AMessageThatIsChangedOnItsWayFailsBothRanks) {
  auto ranks = TestRendezvous(2, LinkKind::kTcp);
  // Far behind all that the handshakes and the control connection say.
  Proxy proxy(ranks[0].addresses[0], 500'000);
  ranks[1].addresses[0] = proxy.address();
  Gang gang(
      ranks, Meeting([](Communicator& communicator, const Gang::Say&) {
        std::string sent(2'000'000, 'x');
        std::string received(sent.size(), '-');
        return communicator.Exchange(
            {{.peer = 1 - communicator.rank(), .send = sent, .receive = absl::MakeSpan(received)}});
      }));
  EXPECT_THAT(gang.Result(0), ContainsRegex("UNAVAILABLE: a message of rank 1 .* does not verify"));
  // Rank 1 may be done with its part.
  EXPECT_THAT(gang.Result(1), ::testing::AnyOf("", ContainsRegex("of rank 1 .* does not verify")));
}

TEST(Meet, WhatMakesNoSenseIsRefusedAtOnce) {
  Rendezvous rendezvous = {.rank = 0, .addresses = {"127.0.0.1:0"}, .secret = "s"};
  EXPECT_TRUE(Meet(rendezvous).ok());
  rendezvous.secret = "";
  EXPECT_TRUE(absl::IsInvalidArgument(Meet(rendezvous).status()));
  rendezvous.secret = "s";
  rendezvous.rank = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(Meet(rendezvous).status()));
  rendezvous.addresses = {"nonsense", "127.0.0.1:0"};
  EXPECT_TRUE(absl::IsInvalidArgument(Meet(rendezvous).status()));
  rendezvous.rank = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Meet(rendezvous).status()));
}

}  // namespace
}  // namespace trainyard::engine::testing
