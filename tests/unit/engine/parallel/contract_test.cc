// What every communicator must do, between real processes: between hosts over either kind of link
// (parallel_test), and between GPUs (emulated_nccl_test, gpu_nccl_test).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "tests/unit/engine/parallel/contract.h"
#include "tests/unit/engine/parallel/rounds.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Contract : public ::testing::TestWithParam<Subject> {
 protected:
  static int MostRanks() { return GetParam().most_ranks ? GetParam().most_ranks() : 8; }
  static std::vector<Rendezvous> Ranks(int ranks) { return TestRendezvous(ranks, GetParam().host); }
  static Gang::Body Meeting(CommunicatorBody body) { return GetParam().meeting(std::move(body)); }
  static std::vector<std::string> Run(int ranks, const CommunicatorBody& body) {
    return Gang(Ranks(ranks), Meeting(body)).Results();
  }
};

// Of a test with so many ranks.
#define TY_NEEDS_RANKS(ranks)                                                           \
  if (MostRanks() < (ranks)) {                                                          \
    GTEST_SKIP() << "needs " << (ranks) << " GPUs, and " << MostRanks() << " are here"; \
  }

INSTANTIATE_TEST_SUITE_P(Links, Contract, ::testing::ValuesIn(Subjects()),
                         [](const ::testing::TestParamInfo<Subject>& info) {
                           return info.param.name;
                         });

TEST_P(Contract, RandomRoundsBringEveryRankWhatWasSent) {
  TY_NEEDS_RANKS(1);
  for (const int ranks : {1, 2, 3, 5, 8}) {
    if (ranks > MostRanks()) break;
    const int rounds = ranks < 5 ? 60 : 20;
    EXPECT_THAT(
        Run(ranks, [rounds](Communicator& communicator,
                            const Gang::Say&) { return RandomRounds(communicator, rounds); }),
        Each(""))
        << ranks;
  }
}

TEST_P(Contract, MessagesLargerThanAnyBufferCrossBothWays) {
  TY_NEEDS_RANKS(3);
  EXPECT_THAT(Run(3,
                  [](Communicator& communicator, const Gang::Say&) {
                    return ExchangeAll(communicator, 5, [](int, int) { return size_t{8} << 20; });
                  }),
              Each(""));
}

TEST_P(Contract, RanksThatExchangeNothingNeedNotCall) {
  TY_NEEDS_RANKS(3);
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

TEST_P(Contract, BytesThatWereSentAreCounted) {
  TY_NEEDS_RANKS(3);
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

TEST_P(Contract, TransfersThatMakeNoSenseFailEveryRank) {
  TY_NEEDS_RANKS(2);
  EXPECT_THAT(Run(2,
                  [](Communicator& communicator, const Gang::Say&) -> absl::Status {
                    if (communicator.rank() == 1) return communicator.Barrier();
                    return communicator.Exchange({{.peer = 7}});
                  }),
              Each(HasSubstr("exchanges with rank 7 of 2")));
}

// A rank that sleeps is woken by who sends to it, not by its clock, which would take minutes here.
TEST_P(Contract, SmallMessagesWakeWhoWaitsForThem) {
  TY_NEEDS_RANKS(3);
  EXPECT_THAT(Run(3,
                  [](Communicator& communicator, const Gang::Say&) -> absl::Status {
                    for (int i = 0; i < 500; ++i) TY_RETURN_IF_ERROR(communicator.Barrier());
                    return absl::OkStatus();
                  }),
              Each(""));
}

TEST_P(Contract, ARankThatIsKilledIsNamedWithinTwoSeconds) {
  TY_NEEDS_RANKS(4);
  const auto ranks = Ranks(4);
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

TEST_P(Contract, ARankThatIsStoppedIsSilent) {
  TY_NEEDS_RANKS(3);
  auto ranks = Ranks(3);
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

TEST_P(Contract, TimeInWhichARankDoesNotCallIsNoSilence) {
  TY_NEEDS_RANKS(2);
  auto ranks = Ranks(2);
  for (Rendezvous& rendezvous : ranks) rendezvous.silence = absl::Milliseconds(400);
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 0) absl::SleepFor(absl::Milliseconds(1000));  // computes
              return communicator.Barrier();
            }));
  EXPECT_THAT(gang.Results(), Each(""));
}

TEST_P(Contract, WordsOfAbortFromAnotherThreadReachRanksInTheMiddleOfAnExchange) {
  TY_NEEDS_RANKS(3);
  const auto ranks = Ranks(3);
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

TEST_P(Contract, AbortEndsAnExchangeThatWaits) {
  TY_NEEDS_RANKS(3);
  const auto ranks = Ranks(3);
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 1)
                communicator.Abort(absl::InternalError("the disk is full"));
              return communicator.Barrier();
            }));
  EXPECT_THAT(gang.Results(),
              Each(absl::StrCat("CANCELLED: ", Name(ranks, 1), " gave up: the disk is full")));
}

TEST_P(Contract, ARankThatIsDoneEarlyDisturbsNobody) {
  TY_NEEDS_RANKS(3);
  const auto ranks = Ranks(3);
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

TEST_P(Contract, NothingIsExchangedWhereBothEndsAreEmpty) {
  TY_NEEDS_RANKS(2);
  EXPECT_THAT(
      Run(2,
          [](Communicator& communicator, const Gang::Say&) -> absl::Status {
            TY_RETURN_IF_ERROR(ExchangeAll(communicator, 1, [](int, int) { return size_t{0}; }));
            // In one direction only.
            TY_RETURN_IF_ERROR(ExchangeAll(communicator, 2, [](int from, int to) {
              return from < to ? size_t{1} : size_t{0};
            }));
            TY_RETURN_IF_ERROR(GatherAll(communicator, 3, 0));
            return GatherAll(communicator, 4, 1);
          }),
      Each(""));
}

TEST_P(Contract, ARankThatDoesNotCallIsNamedOncePatienceIsOver) {
  TY_NEEDS_RANKS(2);
  const auto ranks = Ranks(2);
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 0) {
                communicator.SetPatience(absl::Milliseconds(300));
                return communicator.Barrier();
              }
              const absl::Time until = absl::Now() + absl::Seconds(20);
              while (communicator.Failure().ok() && absl::Now() < until) std::this_thread::yield();
              return communicator.Failure();
            }));
  EXPECT_THAT(gang.Results(), Each(AllOf(HasSubstr(Name(ranks, 1)), HasSubstr("300ms"))));
}

TEST_P(Contract, RanksWhoseCallsDoNotFitTogetherFail) {
  TY_NEEDS_RANKS(2);
  EXPECT_THAT(Run(2,
                  [](Communicator& communicator, const Gang::Say&) -> absl::Status {
                    communicator.SetPatience(absl::Milliseconds(500));
                    std::string sent(8, 'x');
                    std::string received(communicator.rank() == 0 ? 16 : 8, '-');
                    const Transfer transfer = {.peer = 1 - communicator.rank(),
                                               .send = sent,
                                               .receive = absl::MakeSpan(received)};
                    TY_RETURN_IF_ERROR(communicator.Exchange({transfer}));
                    return communicator.Barrier();
                  }),
              Each(HasSubstr("rank 1")));
}

}  // namespace
}  // namespace trainyard::engine::testing
