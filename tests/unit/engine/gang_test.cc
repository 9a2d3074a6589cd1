#include "executor/engine/gang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "executor/engine/arithmetic.h"
#include "executor/engine/fault.h"
#include "executor/engine/groups.h"
#include "executor/engine/step_patience.h"
#include "tests/unit/engine/in_threads.h"

namespace trainyard::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Gang, ARankThatIsAloneDecidesForItself) {
  const Gang alone;
  EXPECT_TRUE(alone.alone() && alone.leads());
  EXPECT_EQ(*alone.Any(true), true);
  EXPECT_EQ(*alone.Any(false), false);
  EXPECT_EQ(*alone.OfLeader(7), 7);
  EXPECT_THAT(*alone.Gather("mine"), ElementsAre("mine"));
  EXPECT_TRUE(alone.CheckSame("the spec", "a", Fault::kSpec).ok());
}

TEST(Gang, DecidesTheSameOnEveryRank) {
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    EXPECT_EQ(gang.leads(), gang.rank() == 0);
    EXPECT_FALSE(*gang.Any(false));
    EXPECT_TRUE(*gang.Any(gang.rank() == 2));
    EXPECT_EQ(*gang.OfLeader(gang.rank() + 5), 5);
    EXPECT_THAT(*gang.Gather(std::string(gang.rank(), 'x')), ElementsAre("", "x", "xx"));
    EXPECT_TRUE(gang.CheckSame("the spec", "a", Fault::kSpec).ok());
  });
}

TEST(Gang, SaysWhichRankDiffers) {
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    const absl::Status status =
        gang.CheckSame("the arithmetic", gang.rank() == 1 ? "avx2" : "amx", Fault::kData);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(FaultOf(status), Fault::kData);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the arithmetic differs between ranks: rank 0 has amx, rank 1 has avx2"));
  });
}

Arithmetic OfRank(int rank) {
  return {{"device", "CPU"}, {"loops", rank == 1 ? "avx2" : "avx512"}};
}

TEST(Gang, RanksThatComputeOtherBitsAreNamedWithWhatDiffers) {
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    const auto same = CompareArithmetic(gang, OfRank(0), v1::Parallel::SAME_IN_ATTEMPT);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(same->arithmetic, OfRank(0));
    EXPECT_EQ(same->difference, "");
    const absl::Status status =
        CompareArithmetic(gang, OfRank(gang.rank()), v1::Parallel::SAME_IN_ATTEMPT).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(FaultOf(status), Fault::kGang);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("loops: avx512 on rank 0, avx2 on rank 1"));
  });
}

TEST(Gang, RanksThatMayComputeOtherBitsHaveNoOneArithmetic) {
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    const auto mixed = CompareArithmetic(gang, OfRank(gang.rank()), v1::Parallel::ANY);
    ASSERT_TRUE(mixed.ok()) << mixed.status();
    EXPECT_TRUE(mixed->arithmetic.empty());
    EXPECT_EQ(mixed->difference, "loops: avx512 on rank 0, avx2 on rank 1");
  });
}

TEST(Gang, CachesOfAnotherSizeAreToldAndDoNotFail) {
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    Arithmetic mine = OfRank(0);
    mine["caches"] = gang.rank() == 2 ? "32 MiB" : "16 MiB";
    const auto mixed = CompareArithmetic(gang, mine, v1::Parallel::ARITHMETIC_UNSPECIFIED);
    ASSERT_TRUE(mixed.ok()) << mixed.status();
    EXPECT_TRUE(mixed->arithmetic.empty());
    EXPECT_EQ(mixed->difference, "caches: 16 MiB on rank 0, 32 MiB on rank 2");
    const absl::Status status = CompareArithmetic(gang, gang.rank() == 1 ? OfRank(1) : mine,
                                                  v1::Parallel::ARITHMETIC_UNSPECIFIED)
                                    .status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("spec.parallel.arithmetic is not ANY"));
  });
}

TEST(Gang, AllReturnWhatWentWrong) {
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    const absl::Status back =
        MarkRolledBack(WithFault(Fault::kNumeric, absl::OutOfRangeError("loss is inf")));
    const absl::Status led = gang.OfLeader(gang.leads() ? back : absl::OkStatus());
    EXPECT_EQ(led.message(), "loss is inf");
    EXPECT_EQ(FaultOf(led), Fault::kNumeric);
    EXPECT_TRUE(RolledBack(led));
    EXPECT_TRUE(gang.OfLeader(gang.leads() ? absl::OkStatus() : back).ok());
    EXPECT_TRUE(gang.Agree(absl::OkStatus()).ok());
    const absl::Status agreed =
        gang.Agree(gang.rank() > 0 ? WithFault(Fault::kData, absl::NotFoundError("no file"))
                                   : absl::OkStatus());
    EXPECT_EQ(agreed.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(FaultOf(agreed), Fault::kData);
    EXPECT_THAT(std::string(agreed.message()), HasSubstr("rank 1"));
  });
}

// Ranks 2 and 3 share shards; rank 3 shares out the logical ranks with rank 1.
TEST(Groups, ARankIsNamedByItsNumberInTheWholeGang) {
  InThreads(4, [&](Communicator& communicator) {
    const Groups groups(Gang(&communicator), 2);
    EXPECT_EQ(groups.shards().rank(), communicator.rank() % 2);
    EXPECT_EQ(groups.data().rank(), communicator.rank() / 2);
    const absl::Status mine = communicator.rank() == 3
                                  ? WithFault(Fault::kData, absl::NotFoundError("no file"))
                                  : absl::OkStatus();
    for (const Gang* part : {&groups.shards(), &groups.data()}) {
      const absl::Status agreed = part->Agree(mine);
      const bool with_3 =
          part == &groups.shards() ? communicator.rank() >= 2 : communicator.rank() % 2 == 1;
      EXPECT_EQ(agreed.ok(), !with_3);
      if (with_3) {
        EXPECT_THAT(std::string(agreed.message()), HasSubstr("rank 3 ("));
      }
    }
  });
}

TEST(Gang, ARankThatFailsTellsTheOthersWhy) {
  absl::BlockingCounter met(2);
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    if (gang.rank() == 1) {
      met.Wait();
      return gang.Fail(absl::NotFoundError("shard 7 is not there"));
    }
    met.DecrementCount();
    const absl::Status status = gang.Any(false).status();
    EXPECT_EQ(FaultOf(status), Fault::kGang);
    EXPECT_THAT(std::string(status.message()), HasSubstr("shard 7 is not there"));
  });
}

TEST(Gang, ARankThatHangsIsNamed) {
  absl::Notification over;
  InThreads(3, [&](Communicator& communicator) {
    const Gang gang(&communicator);
    ASSERT_TRUE(gang.Any(true).ok());
    if (gang.rank() == 1) return over.WaitForNotification();
    communicator.SetPatience(absl::Milliseconds(200));
    const absl::Status status = gang.Any(false).status();
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1 ("), HasSubstr("it hangs, or is that slow"),
                      Not(HasSubstr("rank 3"))));
    if (gang.rank() == 0) over.Notify();
  });
}

TEST(Bounds, AreThoseOfTheSpecAndNoLongerThanSilence) {
  Rendezvous rendezvous;
  v1::Parallel parallel;
  SetBounds(parallel, rendezvous);
  EXPECT_FALSE(rendezvous.progress_timeout.has_value());
  EXPECT_EQ(rendezvous.silence, absl::Seconds(10));
  parallel.set_progress_timeout_seconds(30);
  SetBounds(parallel, rendezvous);
  EXPECT_EQ(rendezvous.progress_timeout, absl::Seconds(30));
  EXPECT_EQ(rendezvous.silence, absl::Seconds(10));
  parallel.set_progress_timeout_seconds(2.5);
  SetBounds(parallel, rendezvous);
  EXPECT_EQ(rendezvous.silence, absl::Seconds(2.5));
}

TEST(StepPatience, IsTenUsualStepsAndAtLeastAMinute) {
  StepPatience patience;
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(patience.Next(now), absl::Minutes(10));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(patience.Next(now += absl::Seconds(1)), absl::Minutes(1));
  // One slow step changes nothing, many do.
  EXPECT_EQ(patience.Next(now += absl::Hours(1)), absl::Minutes(1));
  absl::Duration last;
  for (int i = 0; i < 15; ++i) last = patience.Next(now += absl::Minutes(1));
  EXPECT_EQ(last, absl::Minutes(10));
}

}  // namespace
}  // namespace trainyard::engine
