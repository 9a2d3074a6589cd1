#include "executor/run/event_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "storage/base/file.h"
#include "tests/unit/run/scratch.h"

namespace trainyard::run {
namespace {

v1::RankEvent Metrics(int64_t step) {
  v1::RankEvent event;
  event.mutable_metrics()->set_step(step);
  event.mutable_metrics()->set_split(v1::MetricPoint::TRAIN);
  (*event.mutable_metrics()->mutable_values())["loss"] = 1.0 / static_cast<double>(step);
  return event;
}

v1::RankEvent Note(const std::string& text) {
  v1::RankEvent event;
  event.mutable_notice()->set_message(text);
  return event;
}

std::vector<int64_t> Sequences(const std::vector<v1::RankEvent>& events) {
  std::vector<int64_t> sequences;
  for (const v1::RankEvent& event : events) sequences.push_back(event.sequence());
  return sequences;
}

class EventLogTest : public Scratch {
 protected:
  std::unique_ptr<EventWriter> Writer() {
    auto writer = EventWriter::Open(path_, clock_);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }

  std::vector<int64_t> ReadAll() {
    EventReader reader(path_);
    auto events = reader.Read(1 << 20);
    EXPECT_TRUE(events.ok()) << events.status();
    return events.ok() ? Sequences(*events) : std::vector<int64_t>{};
  }

  std::string Content() { return *ReadFile(path_); }
  void SetContent(const std::string& bytes) { ASSERT_TRUE(WriteFileAtomically(path_, bytes).ok()); }

  const std::string path_ = folder_ + "/events.log";
  FakeClock clock_{absl::FromUnixSeconds(1'000'000)};
};

TEST_F(EventLogTest, ReaderReturnsWhatWasAppendedInOrder) {
  auto writer = Writer();
  for (int step = 1; step <= 3; ++step) ASSERT_TRUE(writer->Append(Metrics(step)).ok());
  EXPECT_EQ(writer->last_sequence(), 3);

  EventReader reader(path_);
  auto events = reader.Read(2);
  ASSERT_TRUE(events.ok());
  EXPECT_THAT(Sequences(*events), ::testing::ElementsAre(1, 2));
  EXPECT_EQ((*events)[0].time_us(), 1'000'000'000'000);
  EXPECT_EQ((*events)[1].metrics().values().at("loss"), 0.5);
  EXPECT_THAT(Sequences(*reader.Read(10)), ::testing::ElementsAre(3));
  EXPECT_THAT(*reader.Read(10), ::testing::IsEmpty());
}

TEST_F(EventLogTest, LogThatDoesNotExistYetHasNoEvents) {
  EventReader reader(path_);
  EXPECT_THAT(*reader.Read(10), ::testing::IsEmpty());
  ASSERT_TRUE(Writer()->Append(Metrics(1)).ok());
  EXPECT_THAT(Sequences(*reader.Read(10)), ::testing::ElementsAre(1));
}

TEST_F(EventLogTest, ReaderContinuesWhereAnotherOneStopped) {
  auto writer = Writer();
  for (int step = 1; step <= 5; ++step) ASSERT_TRUE(writer->Append(Metrics(step)).ok());
  EventReader first(path_);
  ASSERT_TRUE(first.Read(3).ok());
  EventReader second(path_, first.position());
  EXPECT_THAT(Sequences(*second.Read(10)), ::testing::ElementsAre(4, 5));
}

TEST_F(EventLogTest, RecordTornAtAnyByteIsIgnoredAndOverwritten) {
  {
    auto writer = Writer();
    for (int step = 1; step <= 2; ++step) ASSERT_TRUE(writer->Append(Metrics(step)).ok());
  }
  const std::string whole = Content();
  EventReader reader(path_);
  ASSERT_TRUE(reader.Read(1).ok());
  const auto first_bytes = static_cast<size_t>(reader.position().offset);
  for (size_t cut = first_bytes; cut < whole.size(); ++cut) {
    SetContent(whole.substr(0, cut));
    ASSERT_THAT(ReadAll(), ::testing::ElementsAre(1)) << "cut at byte " << cut;
    auto writer = Writer();
    ASSERT_EQ(writer->last_sequence(), 1);
    ASSERT_TRUE(writer->Append(Metrics(7)).ok());
    ASSERT_THAT(ReadAll(), ::testing::ElementsAre(1, 2)) << "cut at byte " << cut;
  }
}

// A rank that runs as another user may write what it likes here, and its agent has others to tend.
TEST_F(EventLogTest, EndlessZerosAndNumbersWithoutNextAreDamageAndTakeNoTime) {
  ASSERT_TRUE(Writer()->Append(Metrics(1)).ok());
  ASSERT_EQ(truncate(path_.c_str(), off_t{1} << 40), 0);  // a hole that takes hours to read
  EventReader reader(path_);
  EXPECT_THAT(Sequences(*reader.Read(1)), ::testing::ElementsAre(1));
  EXPECT_EQ(reader.Read(1).status().code(), absl::StatusCode::kDataLoss);

  SetContent("");
  v1::RankEvent last = Metrics(1);
  ASSERT_TRUE(EventWriter::OpenAt(path_, SystemClock(), {.sequence = (int64_t{1} << 62)})
                  .value()
                  ->Append(std::move(last))
                  .ok());
  EXPECT_EQ(EventReader(path_).Read(1).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(EventLogTest, ReaderWaitsForTheRestOfATornRecord) {
  ASSERT_TRUE(Writer()->Append(Metrics(1)).ok());
  const std::string whole = Content();
  FileDescriptor fd(open(path_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  EventReader reader(path_);
  for (const char byte : whole) {
    ASSERT_THAT(*reader.Read(10), ::testing::IsEmpty());
    ASSERT_EQ(write(fd.get(), &byte, 1), 1);
  }
  EXPECT_THAT(Sequences(*reader.Read(10)), ::testing::ElementsAre(1));
}

TEST_F(EventLogTest, LastRecordWithWrongChecksumCountsAsTorn) {
  {
    auto writer = Writer();
    for (int step = 1; step <= 2; ++step) ASSERT_TRUE(writer->Append(Metrics(step)).ok());
  }
  std::string bytes = Content();
  bytes.back() ^= 1;
  SetContent(bytes);
  EXPECT_THAT(ReadAll(), ::testing::ElementsAre(1));
  EXPECT_EQ(Writer()->last_sequence(), 1);
}

TEST_F(EventLogTest, ZerosAfterACrashOfTheMachineCountAsTorn) {
  ASSERT_TRUE(Writer()->Append(Metrics(1)).ok());
  SetContent(Content() + std::string(100'000, '\0'));
  EXPECT_THAT(ReadAll(), ::testing::ElementsAre(1));
  EXPECT_EQ(Writer()->last_sequence(), 1);
}

TEST_F(EventLogTest, DamageAtAnyByteOfTheMiddleIsReportedAfterWhatLiesBefore) {
  {
    auto writer = Writer();
    for (int step = 1; step <= 3; ++step) ASSERT_TRUE(writer->Append(Metrics(step)).ok());
  }
  const std::string whole = Content();
  EventReader marks(path_);
  ASSERT_TRUE(marks.Read(1).ok());
  const auto begin = static_cast<size_t>(marks.position().offset);
  ASSERT_TRUE(marks.Read(1).ok());
  const auto end = static_cast<size_t>(marks.position().offset);
  for (size_t at = begin; at < end; ++at) {
    // A length that grew past the end of the file looks torn until the file grows: skip those.
    if (at < begin + 4) continue;
    std::string bytes = whole;
    bytes[at] ^= 0x40;
    SetContent(bytes);
    EventReader reader(path_);
    ASSERT_THAT(Sequences(*reader.Read(10)), ::testing::ElementsAre(1)) << "byte " << at;
    EXPECT_EQ(reader.Read(10).status().code(), absl::StatusCode::kDataLoss) << "byte " << at;
    EXPECT_EQ(EventWriter::Open(path_, clock_).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Content(), bytes) << "a refused log is left as it is";
  }
}

TEST_F(EventLogTest, AbsurdLengthInTheMiddleIsDamage) {
  {
    auto writer = Writer();
    for (int step = 1; step <= 2; ++step) ASSERT_TRUE(writer->Append(Metrics(step)).ok());
  }
  std::string bytes = Content();
  bytes[3] = '\x7F';
  SetContent(bytes);
  EventReader reader(path_);
  EXPECT_EQ(reader.Read(10).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(EventLogTest, RepeatedRecordIsDamage) {
  ASSERT_TRUE(Writer()->Append(Metrics(1)).ok());
  SetContent(Content() + Content() + Content());
  EventReader reader(path_);
  EXPECT_THAT(Sequences(*reader.Read(10)), ::testing::ElementsAre(1));
  EXPECT_EQ(reader.Read(10).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(EventLogTest, WriterAtAPositionCutsDamageAndNumbersOn) {
  {
    auto writer = Writer();
    for (int step = 1; step <= 3; ++step) ASSERT_TRUE(writer->Append(Metrics(step)).ok());
  }
  std::string bytes = Content();
  EventReader reader(path_);
  ASSERT_TRUE(reader.Read(1).ok());
  bytes[reader.position().offset + 12] ^= 1;
  SetContent(bytes);
  auto writer = EventWriter::OpenAt(path_, clock_, reader.position());
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(Note("the end")).ok());
  EXPECT_THAT(ReadAll(), ::testing::ElementsAre(1, 2));
}

TEST_F(EventLogTest, WriterNumbersAfterWhatTheServerHasWhenTheMachineLostTheEnd) {
  ASSERT_TRUE(Writer()->Append(Metrics(1)).ok());
  auto writer = EventWriter::OpenAt(path_, clock_, {.offset = 1 << 20, .sequence = 9});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(Note("the end")).ok());
  EXPECT_THAT(ReadAll(), ::testing::ElementsAre(1, 10));
}

TEST_F(EventLogTest, ReaderBesideAWriterSeesEveryEventOnce) {
  constexpr int kEvents = 5000;
  std::thread worker([this] {
    auto writer = Writer();
    // Records of all sizes, so that some cross a buffer and a page.
    for (int i = 1; i <= kEvents; ++i) {
      ASSERT_TRUE(writer->Append(Note(std::string((i * 37) % 9000, 'x'))).ok());
    }
  });
  EventReader reader(path_);
  int64_t last = 0;
  while (last < kEvents) {
    auto events = reader.Read(100);
    ASSERT_TRUE(events.ok()) << events.status();
    for (const v1::RankEvent& event : *events) {
      ASSERT_EQ(event.sequence(), ++last);
      ASSERT_EQ(event.notice().message().size(), (last * 37) % 9000);
    }
  }
  worker.join();
}

TEST_F(EventLogTest, WriterContinuesAfterTheOneThatWasKilled) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto writer = EventWriter::Open(path_, SystemClock());
    for (int step = 1;; ++step) {
      if (!writer.ok() || !(*writer)->Append(Metrics(step)).ok()) _exit(1);
      if (step == 1000 && write(pipe_ends[1], "k", 1) != 1) _exit(1);
    }
  }
  char ready = 0;
  ASSERT_EQ(read(pipe_ends[0], &ready, 1), 1);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  ASSERT_TRUE(WIFSIGNALED(status));

  auto writer = Writer();
  const int64_t last = writer->last_sequence();
  ASSERT_GE(last, 1000);
  ASSERT_TRUE(writer->Append(Note("killed")).ok());
  const std::vector<int64_t> sequences = ReadAll();
  ASSERT_EQ(sequences.size(), static_cast<size_t>(last + 1));
  EXPECT_EQ(sequences.back(), last + 1);
}

// Fills `path` until the writer is refused; returns how many events went in.
int64_t FillUp(EventWriter& writer) {
  absl::Status status;
  while (status.ok()) status = writer.Append(Note(std::string(5000, 'x')));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  return writer.last_sequence();
}

TEST_F(EventLogTest, FullDiskRefusesTheEventAndKeepsTheLog) {
  const std::string disk = folder_ + "/disk";
  std::filesystem::create_directories(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs needs root";
  }
  {
    auto writer = EventWriter::Open(disk + "/events.log", clock_);
    ASSERT_TRUE(writer.ok());
    const std::string ballast = disk + "/ballast";
    ASSERT_TRUE(WriteFileAtomically(ballast, std::string(100'000, 'b')).ok());
    const int64_t before = FillUp(**writer);
    ASSERT_GT(before, 100);
    EventReader reader(disk + "/events.log");
    EXPECT_EQ(reader.Read(1 << 20)->size(), static_cast<size_t>(before));

    ASSERT_EQ(unlink(ballast.c_str()), 0);
    ASSERT_TRUE((*writer)->Append(Note("room again")).ok());
    EXPECT_THAT(Sequences(*reader.Read(10)), ::testing::ElementsAre(before + 1));
  }
  EXPECT_EQ(umount(disk.c_str()), 0);
}

TEST_F(EventLogTest, LimitOnFileSizesIsLikeAFullDisk) {
  auto writer = Writer();
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 64'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const int64_t before = FillUp(*writer);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  ASSERT_TRUE(writer->Append(Note("room again")).ok());
  EXPECT_EQ(ReadAll().size(), static_cast<size_t>(before + 1));
}

TEST_F(EventLogTest, EventThatReadersWouldTakeForDamageIsRefused) {
  auto writer = Writer();
  EXPECT_EQ(writer->Append(Note(std::string(kMaxEventBytes + 1, 'x'))).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer->Append(Metrics(1)).ok());
  EXPECT_THAT(ReadAll(), ::testing::ElementsAre(1));
}

}  // namespace
}  // namespace trainyard::run
