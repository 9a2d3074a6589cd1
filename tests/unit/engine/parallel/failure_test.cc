// Ranks that die, stop, leave and give up, over either kind of link.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "tests/unit/engine/parallel/gang.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Failure : public ::testing::TestWithParam<LinkKind> {};

INSTANTIATE_TEST_SUITE_P(Links, Failure, ::testing::Values(LinkKind::kMemory, LinkKind::kTcp),
                         [](const ::testing::TestParamInfo<LinkKind>& info) {
                           return info.param == LinkKind::kMemory ? "Memory" : "Tcp";
                         });

std::string Name(const std::vector<Rendezvous>& ranks, int rank) {
  return absl::StrCat("rank ", rank, " (", ranks[rank].addresses[rank], ")");
}

// Exchanges large messages until that fails.
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

TEST_P(Failure, ARankThatIsKilledIsNamedWithinTwoSeconds) {
  const auto ranks = TestRendezvous(4, GetParam());
  Gang gang(ranks, Meeting(ExchangeWithoutEnd));
  for (int r = 0; r < 4; ++r) ASSERT_TRUE(gang.Hears(r, "exchanged"));
  const absl::Time start = absl::Now();
  gang.Signal(2, SIGKILL);
  for (const int r : {0, 1, 3}) {
    EXPECT_EQ(gang.Result(r), absl::StrCat("UNAVAILABLE: ", Name(ranks, 2), " ended")) << r;
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_EQ(gang.Result(2), "signal 9");
}

TEST_P(Failure, ARankThatIsStoppedIsSilent) {
  auto ranks = TestRendezvous(3, GetParam());
  for (Rendezvous& rendezvous : ranks) rendezvous.silence = absl::Milliseconds(800);
  Gang gang(ranks, Meeting(ExchangeWithoutEnd));
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(gang.Hears(r, "exchanged"));
  const absl::Time start = absl::Now();
  gang.Signal(1, SIGSTOP);
  const std::string silent =
      absl::StrCat("UNAVAILABLE: ", Name(ranks, 1), " is silent for 800ms; it was last heard of ");
  for (const int r : {0, 2}) {
    EXPECT_THAT(gang.Result(r), StartsWith(silent)) << r;
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  // Once it goes on it learns what the others think of it.
  gang.Signal(1, SIGCONT);
  EXPECT_THAT(gang.Result(1), StartsWith(silent));
}

// Rank 2 stops making calls. Rank 1 waits for it, and rank 0 only for rank 1.
TEST_P(Failure, ARankThatMakesNoProgressIsNamedWithItsLastCollective) {
  auto ranks = TestRendezvous(3, GetParam());
  for (Rendezvous& rendezvous : ranks) {
    rendezvous.silence = absl::Seconds(2);
    rendezvous.progress_timeout = absl::Seconds(2);
  }
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say& say) -> absl::Status {
              communicator.SetPatience(absl::InfiniteDuration());  // without effect
              std::string byte = "x";
              TY_RETURN_IF_ERROR(communicator.Broadcast(0, absl::MakeSpan(byte)));
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 2) {
                say("hangs");
                for (;;) pause();
              }
              const int awaited = communicator.rank() == 1 ? 2 : 1;
              return communicator.Exchange({{.peer = awaited, .receive = absl::MakeSpan(byte)}});
            }));
  ASSERT_TRUE(gang.Hears(2, "hangs"));
  for (const int r : {0, 1}) {
    EXPECT_THAT(
        gang.Result(r),
        AllOf(StartsWith(absl::StrCat("DEADLINE_EXCEEDED: ", Name(ranks, 2),
                                      ", after barrier 2, did not do its part of exchange")),
              HasSubstr(" for 2s: it hangs, or is that slow")))
        << r;
  }
}

TEST_P(Failure, TimeInWhichARankDoesNotCallIsNoSilence) {
  auto ranks = TestRendezvous(2, GetParam());
  for (Rendezvous& rendezvous : ranks) rendezvous.silence = absl::Milliseconds(400);
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 0) absl::SleepFor(absl::Milliseconds(1000));  // computes
              return communicator.Barrier();
            }));
  EXPECT_THAT(gang.Results(), Each(""));
}

TEST_P(Failure, WordsOfAbortFromAnotherThreadReachRanksInTheMiddleOfAnExchange) {
  const auto ranks = TestRendezvous(3, GetParam());
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say& say) -> absl::Status {
              if (communicator.rank() != 1) return ExchangeWithoutEnd(communicator, say);
              absl::Notification exchanged;
              std::thread other([&] {
                exchanged.WaitForNotification();
                communicator.Abort(absl::InternalError("the disk is full"));
                communicator.Abort(absl::InternalError("the second call does not count"));
              });
              const absl::Status status =
                  ExchangeWithoutEnd(communicator, [&](const std::string&) { exchanged.Notify(); });
              other.join();
              return status;
            }));
  EXPECT_THAT(gang.Results(),
              Each(absl::StrCat("CANCELLED: ", Name(ranks, 1), " gave up: the disk is full")));
}

TEST_P(Failure, AbortEndsAnExchangeThatWaits) {
  const auto ranks = TestRendezvous(3, GetParam());
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 1)
                communicator.Abort(absl::InternalError("the disk is full"));
              return communicator.Barrier();
            }));
  EXPECT_THAT(gang.Results(),
              Each(absl::StrCat("CANCELLED: ", Name(ranks, 1), " gave up: the disk is full")));
}

TEST_P(Failure, ARankThatIsDoneEarlyDisturbsNobody) {
  const auto ranks = TestRendezvous(3, GetParam());
  Gang gang(
      ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
        std::string bytes(500'000, 'a' + communicator.rank());
        // Rank 2 sends to both and leaves; they receive it long after.
        if (communicator.rank() == 2) {
          return communicator.Exchange({{.peer = 0, .send = bytes}, {.peer = 1, .send = bytes}});
        }
        std::string received(bytes.size(), '-');
        for (int i = 0; i < 50; ++i) {
          TY_RETURN_IF_ERROR(communicator.Exchange({{.peer = 1 - communicator.rank(),
                                                     .send = bytes,
                                                     .receive = absl::MakeSpan(received)}}));
        }
        TY_RETURN_IF_ERROR(
            communicator.Exchange({{.peer = 2, .receive = absl::MakeSpan(received)}}));
        return received == std::string(bytes.size(), 'c')
                   ? absl::OkStatus()
                   : absl::DataLossError("not what was sent");
      }));
  EXPECT_THAT(gang.Results(), Each(""));
}

TEST_P(Failure, ARankThatIsNeededAfterItLeftIsNamed) {
  const auto ranks = TestRendezvous(3, GetParam());
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 2) return absl::OkStatus();
              return communicator.Barrier();
            }));
  for (const int r : {0, 1}) {
    EXPECT_EQ(gang.Result(r), absl::StrCat("UNAVAILABLE: ", Name(ranks, 2), " left")) << r;
  }
  EXPECT_EQ(gang.Result(2), "");
}

}  // namespace
}  // namespace trainyard::engine::testing
