#include "executor/agent/spool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/base/file.h"
#include "tests/unit/run/scratch.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SpoolTest : public run::Scratch {
 protected:
  SpoolTest() {
    key_.set_job_uid("a");
    key_.set_attempt(1);
  }

  void Write(int events, size_t size = 1) {
    auto writer = run::EventWriter::Open(directory_.events_path(), clock_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (int i = 0; i < events; ++i) {
      v1::RankEvent event;
      event.mutable_notice()->set_message(std::string(size, 'x'));
      ASSERT_TRUE((*writer)->Append(event).ok());
    }
  }

  static std::vector<int64_t> Next(Spool& spool) {
    std::vector<int64_t> sequences;
    const auto batch = spool.NextBatch();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok() || !*batch) return sequences;
    for (const v1::RankEvent& event : (*batch)->events()) sequences.push_back(event.sequence());
    return sequences;
  }

  static std::vector<int64_t> All(Spool& spool) {
    std::vector<int64_t> all;
    for (;;) {
      const std::vector<int64_t> next = Next(spool);
      if (next.empty()) return all;
      all.insert(all.end(), next.begin(), next.end());
    }
  }

  v1::RankKey key_;
  const run::RunDirectory directory_{folder_};
  FakeClock clock_;
};

TEST_F(SpoolTest, SendsWhatIsNewOnce) {
  Spool spool(directory_, key_);
  EXPECT_THAT(Next(spool), IsEmpty());
  EXPECT_FALSE(spool.has_begun());
  Write(2);
  EXPECT_THAT(Next(spool), ElementsAre(1, 2));
  EXPECT_TRUE(spool.has_begun());
  EXPECT_THAT(Next(spool), IsEmpty());
  Write(1);
  EXPECT_THAT(Next(spool), ElementsAre(3));
}

TEST_F(SpoolTest, NewSessionResendsWhatWasNotAcknowledged) {
  Spool spool(directory_, key_);
  Write(2);
  ASSERT_THAT(Next(spool), ElementsAre(1, 2));
  Write(2);
  ASSERT_THAT(Next(spool), ElementsAre(3, 4));
  spool.Acknowledge(2, false);
  spool.Rewind();
  EXPECT_THAT(Next(spool), ElementsAre(3, 4));
  spool.Acknowledge(3, false);
  spool.Rewind();
  EXPECT_THAT(Next(spool), ElementsAre(4)) << "also in the middle of a batch";
}

TEST_F(SpoolTest, ServerThatIsAheadIsNotSentWhatItHas) {
  Write(3);
  Spool spool(directory_, key_);
  spool.Acknowledge(3, false);
  EXPECT_THAT(Next(spool), IsEmpty());
  Write(1);
  EXPECT_THAT(Next(spool), ElementsAre(4));
}

TEST_F(SpoolTest, RestartedAgentGoesOnWhereItWas) {
  {
    Spool spool(directory_, key_);
    Write(3);
    ASSERT_THAT(Next(spool), ElementsAre(1, 2, 3));
    spool.Acknowledge(3, false);
    ASSERT_TRUE(spool.Save().ok());
    Write(2);
  }
  Spool spool(directory_, key_);
  EXPECT_THAT(Next(spool), ElementsAre(4, 5));
}

TEST_F(SpoolTest, MarkThatIsBrokenMeansFromTheBeginning) {
  Write(2);
  for (const char* mark : {"", "7", "1 99999 open", "x y z", "1 -9 open"}) {
    ASSERT_TRUE(WriteFileAtomically(directory_.acked_path(), mark).ok());
    Spool spool(directory_, key_);
    const std::vector<int64_t> next = Next(spool);
    ASSERT_FALSE(next.empty()) << mark;
    EXPECT_EQ(next.back(), 2) << mark;
  }
}

TEST_F(SpoolTest, NoMoreThanAWindowIsOnItsWay) {
  Write(20'000);
  Spool spool(directory_, key_);
  std::vector<int64_t> sent = All(spool);
  EXPECT_LT(sent.size(), 20'000u);
  while (sent.back() < 20'000) {
    spool.Acknowledge(sent.back(), false);
    const std::vector<int64_t> more = All(spool);
    ASSERT_FALSE(more.empty());
    ASSERT_EQ(more.front(), sent.back() + 1);
    sent.insert(sent.end(), more.begin(), more.end());
  }
}

TEST_F(SpoolTest, BatchFitsIntoAMessage) {
  Write(8, 900'000);
  Spool spool(directory_, key_);
  for (;;) {
    const auto batch = spool.NextBatch();
    ASSERT_TRUE(batch.ok());
    if (!*batch) break;
    EXPECT_LT((*batch)->ByteSizeLong(), 3u << 20);
  }
}

TEST_F(SpoolTest, IsDoneOnceTheEndIsAcknowledged) {
  Write(2);
  Spool spool(directory_, key_);
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  ASSERT_THAT(Next(spool), ElementsAre(1, 2, 3));
  EXPECT_FALSE(spool.done());
  spool.Acknowledge(3, false);
  EXPECT_TRUE(spool.done());
  ASSERT_TRUE(spool.Save().ok());
  EXPECT_TRUE(Spool(directory_, key_).done());
}

TEST_F(SpoolTest, EndIsWrittenOnce) {
  Write(1);
  Spool spool(directory_, key_);
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  ASSERT_TRUE(Spool(directory_, key_).AppendLast({}, {}, clock_).ok());
  EXPECT_THAT(All(spool), ElementsAre(1, 2));
}

TEST_F(SpoolTest, FailureIsWrittenOnceAlthoughThereWasNoRoomForTheEndBehindIt) {
  Write(1);
  v1::RankEvent failure;
  failure.mutable_failure()->set_message("the disk is full");
  v1::RankEvent::Exited exited;
  exited.set_evidence(std::string(4000, 'x'));
  Spool spool(directory_, key_);
  EXPECT_THAT(All(spool), ElementsAre(1));

  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_FALSE(spool.AppendLast({failure}, exited, clock_).ok());
  EXPECT_THAT(All(spool), IsEmpty());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(spool.AppendLast({failure}, exited, clock_).ok());
  EXPECT_THAT(All(spool), ElementsAre(2, 3));
}

TEST_F(SpoolTest, FencedSpoolSendsNothingMore) {
  Write(2);
  Spool spool(directory_, key_);
  spool.Acknowledge(0, true);
  EXPECT_TRUE(spool.done());
  EXPECT_THAT(Next(spool), IsEmpty());
}

TEST_F(SpoolTest, FencedSpoolThatIsWantedAgainGoesOnToItsEnd) {
  Write(2);
  Spool spool(directory_, key_);
  EXPECT_FALSE(spool.Reopen()) << "nobody said that it is not wanted";
  spool.Acknowledge(1, true);
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok()) << "nothing is written";
  EXPECT_TRUE(spool.ended());
  ASSERT_TRUE(spool.Reopen());
  EXPECT_FALSE(spool.ended());
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  EXPECT_THAT(All(spool), ElementsAre(2, 3));
  spool.Acknowledge(3, false);
  EXPECT_TRUE(spool.done());
  EXPECT_FALSE(spool.Reopen()) << "its end is stored";
}

TEST_F(SpoolTest, ThatItWasFencedIsKnownAfterARestart) {
  Write(2);
  {
    Spool spool(directory_, key_);
    spool.Acknowledge(1, true);
    ASSERT_TRUE(spool.Save().ok());
  }
  Spool spool(directory_, key_);
  EXPECT_TRUE(spool.done());
  ASSERT_TRUE(spool.Reopen());
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  EXPECT_EQ(All(spool).back(), 3);
}

TEST_F(SpoolTest, EndReplacesADamagedRecord) {
  Write(3);
  {
    Spool spool(directory_, key_);
    ASSERT_THAT(Next(spool), ElementsAre(1, 2, 3));
  }
  run::EventReader marks(directory_.events_path());
  ASSERT_TRUE(marks.Read(1).ok());
  std::string bytes = *ReadFile(directory_.events_path());
  bytes[marks.position().offset + 12] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(directory_.events_path(), bytes).ok());
  Spool spool(directory_, key_);
  ASSERT_THAT(Next(spool), ElementsAre(1));
  ASSERT_TRUE(absl::IsDataLoss(spool.NextBatch().status()));
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  EXPECT_THAT(Next(spool), ElementsAre(2));
}

TEST_F(SpoolTest, EndIsNumberedAfterWhatTheServerHas) {
  Write(2);
  Spool spool(directory_, key_);
  spool.Acknowledge(9, false);  // the machine crashed and lost the end of the log
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  EXPECT_THAT(All(spool), ElementsAre(10));
}

TEST_F(SpoolTest, ServerThatTookTheEndForAnEarlierEventIsToldTheEndAgain) {
  Write(2);
  Spool spool(directory_, key_);
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  ASSERT_THAT(Next(spool), ElementsAre(1, 2, 3));
  EXPECT_TRUE(spool.ended());
  spool.Acknowledge(9, false);  // stored before the machine crashed and lost the end of the log
  EXPECT_FALSE(spool.done());
  EXPECT_FALSE(spool.ended());
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  EXPECT_THAT(Next(spool), ElementsAre(10));
  spool.Acknowledge(10, false);
  EXPECT_TRUE(spool.done());
}

TEST_F(SpoolTest, EndThatTheWorkerWroteIsNotSentWhileItRuns) {
  Write(1);
  auto writer = run::EventWriter::Open(directory_.events_path(), clock_);
  v1::RankEvent forged;
  forged.mutable_exited()->set_exit_code(0);
  ASSERT_TRUE((*writer)->Append(forged).ok());
  Spool spool(directory_, key_);
  EXPECT_TRUE(absl::IsDataLoss(spool.NextBatch().status()));
  EXPECT_TRUE(absl::IsDataLoss(spool.NextBatch().status())) << "it does not go by";
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  EXPECT_THAT(All(spool), ElementsAre(1, 2));
}

TEST_F(SpoolTest, LogThatWasRemovedGetsItsEndNevertheless) {
  Write(5);
  Spool spool(directory_, key_);
  ASSERT_THAT(Next(spool), ElementsAre(1, 2, 3, 4, 5));
  spool.Acknowledge(3, false);
  std::filesystem::remove_all(folder_);
  ASSERT_TRUE(spool.AppendLast({}, {}, clock_).ok());
  EXPECT_THAT(All(spool), ElementsAre(6));
  spool.Acknowledge(5, false);  // of what was on its way
  EXPECT_FALSE(spool.done());
  spool.Acknowledge(6, false);
  EXPECT_TRUE(spool.done());
}

TEST_F(SpoolTest, AcknowledgedEventsTakeNoRoomOnTheDisk) {
  const auto room = [&] {
    struct stat info {};
    EXPECT_EQ(stat(directory_.events_path().c_str(), &info), 0);
    return static_cast<int64_t>(info.st_blocks) * 512;
  };
  auto writer = run::EventWriter::Open(directory_.events_path(), clock_);
  v1::RankEvent event;
  event.mutable_notice()->set_message(std::string(900'000, 'x'));
  Spool spool(directory_, key_);
  int64_t most = 0;
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE((*writer)->Append(event).ok());
    ASSERT_THAT(Next(spool), ElementsAre(i + 1));
    spool.Acknowledge(i + 1, false);
    ASSERT_TRUE(spool.Save().ok());
    most = std::max(most, room());
  }
  EXPECT_LT(most, 20 << 20) << "of 57 MB";
  ASSERT_TRUE((*writer)->Append(event).ok());
  Spool next(directory_, key_);
  EXPECT_THAT(Next(next), ElementsAre(65)) << "and the next agent goes on";
}

}  // namespace
}  // namespace trainyard
