#include "executor/run/run_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <string>

#include "storage/base/file.h"
#include "tests/unit/run/scratch.h"

namespace trainyard::run {
namespace {

using RunDirectoryTest = Scratch;
using LeaseFileTest = Scratch;

v1::Assignment Example() {
  v1::Assignment assignment;
  assignment.mutable_key()->set_job_uid("0f3a-7");
  assignment.mutable_key()->set_attempt(3);
  assignment.set_job_name("projects/default/jobs/a");
  assignment.mutable_spec()->mutable_schedule()->set_learning_rate(0.1 + 0.2);
  assignment.mutable_spec()->mutable_training()->set_seed(std::numeric_limits<uint64_t>::max());
  assignment.add_slots(0);
  assignment.set_wish(v1::Assignment::RUN);
  return assignment;
}

TEST_F(RunDirectoryTest, AssignmentIsReadBackBitForBit) {
  const RunDirectory directory(folder_ + "/ranks/a.1.0");
  ASSERT_TRUE(directory.WriteAssignment(Example()).ok());
  const auto back = directory.ReadAssignment();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->SerializeAsString(), Example().SerializeAsString());
}

// Workers from before there were claims refuse an assignment with a field that they do not know.
TEST_F(RunDirectoryTest, TheClaimIsReadBackAndIsNotInTheAssignmentsFile) {
  const RunDirectory directory(folder_ + "/ranks/a.1.0");
  v1::Assignment claimed = Example();
  claimed.mutable_key()->set_claim("7c1f");
  ASSERT_TRUE(directory.WriteAssignment(claimed).ok());
  EXPECT_EQ(ReadFile(directory.assignment_path())->find("claim"), std::string::npos);
  EXPECT_EQ(directory.ReadAssignment()->key().claim(), "7c1f");
  ASSERT_TRUE(directory.WriteAssignment(Example()).ok());
  EXPECT_EQ(directory.ReadAssignment()->key().claim(), "") << "the old one is gone";
}

TEST_F(RunDirectoryTest, AssignmentThatIsMissingOrBrokenIsTold) {
  const RunDirectory directory(folder_);
  EXPECT_EQ(directory.ReadAssignment().status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(directory.assignment_path(), "{\"key\":").ok());
  EXPECT_EQ(directory.ReadAssignment().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RunDirectoryTest, NameCarriesTheWholeKey) {
  v1::RankKey key;
  key.set_job_uid("7f-3_A");
  key.set_attempt(12);
  key.set_rank(5);
  EXPECT_EQ(RunDirectory::NameOf(key), "7f-3_A.12.5");
  const auto back = RunDirectory::ParseName("7f-3_A.12.5");
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->SerializeAsString(), key.SerializeAsString());
}

TEST_F(RunDirectoryTest, NamesThatAreNotOursAreRefused) {
  for (const char* name : {"", "..", "a.1", "a.0.0", "a.1.-1", "a.+1.0", "a. 1.0", "a.1.0.tmp",
                           "a/b.1.0", ".1.0", "a.01.0", "a.1.99999999999"}) {
    EXPECT_EQ(RunDirectory::ParseName(name).status().code(), absl::StatusCode::kInvalidArgument)
        << name;
  }
}

TEST_F(LeaseFileTest, NewLeaseHasEnded) {
  const auto lease = LeaseFile::Open(folder_ + "/lease", true);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->Life(), absl::ZeroDuration());
  EXPECT_EQ(lease->Right(), absl::ZeroDuration());
}

TEST_F(LeaseFileTest, OtherProcessSeesTheExtension) {
  auto lease = LeaseFile::Open(folder_ + "/lease", true);
  ASSERT_TRUE(lease.ok());
  int go[2];
  ASSERT_EQ(pipe2(go, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto mine = LeaseFile::Open(folder_ + "/lease", false);
    char byte = 0;
    if (!mine.ok() || read(go[0], &byte, 1) != 1) _exit(1);
    _exit(mine->Life() == absl::Milliseconds(1234) ? 0 : 2);
  }
  lease->ExtendLife(absl::Milliseconds(1234));
  ASSERT_EQ(write(go[1], "g", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  close(go[0]);
  close(go[1]);
}

TEST_F(LeaseFileTest, LeaseIsNeverShortenedAndSurvivesReopening) {
  auto lease = LeaseFile::Open(folder_ + "/lease", true);
  ASSERT_TRUE(lease.ok());
  lease->ExtendLife(absl::Seconds(10));
  lease->ExtendLife(absl::Seconds(5));
  lease->ExtendRight(absl::Seconds(8));
  lease->ExtendFence(absl::Seconds(600));
  auto again = LeaseFile::Open(folder_ + "/lease", true);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->Life(), absl::Seconds(10));
  EXPECT_EQ(again->Right(), absl::Seconds(8));
  EXPECT_EQ(again->Fence(), absl::Seconds(600));
}

TEST_F(LeaseFileTest, WhoeverTellsOneTimeOnlyGivesTheRightUntilThen) {
  const int64_t until = absl::ToInt64Nanoseconds(absl::Seconds(7));
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/lease",
                                  std::string(reinterpret_cast<const char*>(&until), sizeof(until)))
                  .ok());
  const auto read = LeaseFile::Open(folder_ + "/lease", false);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Right(), absl::Seconds(7));
  auto adopted = LeaseFile::Open(folder_ + "/lease", true);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_TRUE(adopted->tells_one_time()) << "also to an agent that would know better";
  adopted->ExtendRight(absl::Seconds(9));
  adopted->ExtendFence(absl::Seconds(600));
  EXPECT_EQ(adopted->Right(), absl::Seconds(7));
  EXPECT_EQ(adopted->Fence(), absl::ZeroDuration());
  adopted->ExtendLife(absl::Seconds(8));
  EXPECT_EQ(read->Right(), absl::Seconds(8));
}

TEST_F(LeaseFileTest, MissingOrShortFileIsToldToTheWorker) {
  EXPECT_EQ(LeaseFile::Open(folder_ + "/lease", false).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/lease", "abc").ok());
  EXPECT_EQ(LeaseFile::Open(folder_ + "/lease", false).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(LeaseFileTest, MovedLeaseStaysMapped) {
  auto lease = LeaseFile::Open(folder_ + "/lease", true);
  ASSERT_TRUE(lease.ok());
  LeaseFile moved = *std::move(lease);
  moved.ExtendLife(absl::Seconds(1));
  EXPECT_EQ(moved.Life(), absl::Seconds(1));
}

}  // namespace
}  // namespace trainyard::run
