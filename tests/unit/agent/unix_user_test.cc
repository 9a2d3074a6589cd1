#include "executor/agent/unix_user.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/agent/project_environment.h"
#include "executor/run/plain_file.h"
#include "executor/run/run_directory.h"
#include "tests/unit/run/scratch.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class UnixUserTest : public run::Scratch {
 protected:
  static absl::StatusCode CodeOf(const std::string& name, const UserRules& rules = {}) {
    return FindUnixUser(name, rules).status().code();
  }
  absl::Status MakeFolder() {
    return MakeProjectFolder("file://" + folder_ + "/a/b/vision/job-1", kNobody);
  }
  std::string Folder() const { return folder_ + "/a/b/vision"; }

  const run::UnixUser kNobody{.name = "nobody", .uid = 65534, .gid = 65534, .groups = {65534}};
};

TEST_F(UnixUserTest, WhoRunsARankIsAUserOfTheNodeThatMayNotEverything) {
  EXPECT_FALSE(FindUnixUser("", {})->has_value());
  EXPECT_EQ(CodeOf("", {.required = true}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf("who-is-this"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf("root"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf("daemon"),
            geteuid() == 1 ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
  if (geteuid() != 0) return;
  const auto nobody = FindUnixUser("nobody", {});
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  EXPECT_EQ((*nobody)->uid, 65534u);
  EXPECT_THAT((*nobody)->groups, ElementsAre(65534u));
}

TEST_F(UnixUserTest, OfAFolderOfARankTheUserMayReadAndWriteWhatItNeeds) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives folders away";
  const run::RunDirectory directory(folder_ + "/rank");
  ASSERT_TRUE(directory.WriteAssignment(v1::Assignment()).ok());
  ASSERT_TRUE(run::LeaseFile::Open(directory.lease_path(), true).ok());
  ASSERT_TRUE(run::WritePlainFile(directory.events_path(), "").ok());
  ASSERT_TRUE(run::WritePlainFile(directory.pid_path(), "1 1").ok());
  ASSERT_TRUE(HandOver(directory.path(), kNobody).ok());
  ASSERT_TRUE(run::ReplacePlainFile(directory.keep_state_path(), "1 here", run::kForGroup).ok());
  const auto of = [](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return absl::StrCat(info.st_uid, ":", info.st_gid, " ", absl::Hex(info.st_mode & 07777));
  };
  EXPECT_EQ(of(directory.path()), absl::StrCat("0:65534 ", absl::Hex(02710)));
  for (const std::string& path :
       {directory.assignment_path(), directory.lease_path(), directory.keep_state_path()}) {
    EXPECT_EQ(of(path), absl::StrCat("0:65534 ", absl::Hex(0640))) << path;
  }
  EXPECT_EQ(of(directory.events_path()), absl::StrCat("65534:65534 ", absl::Hex(0600)));
  EXPECT_EQ(of(directory.pid_path()), absl::StrCat("0:0 ", absl::Hex(0600)));
}

TEST_F(UnixUserTest, TheFolderOfAProjectIsItsUsersWhicheverNodeIsFirst) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives folders away";
  std::vector<std::thread> nodes;
  for (int i = 0; i < 8; ++i) {
    nodes.emplace_back([this] { EXPECT_EQ(MakeFolder(), absl::OkStatus()); });
  }
  for (std::thread& node : nodes) node.join();
  struct stat info {};
  ASSERT_EQ(stat(Folder().c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat((folder_ + "/a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0711u) << "users pass through";
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/a/b")) {
    EXPECT_EQ(entry.path().filename(), "vision");
    ++entries;
  }
  EXPECT_EQ(entries, 1);
  std::ofstream(Folder() + "/checkpoint") << "x";
  EXPECT_EQ(MakeFolder(), absl::OkStatus());
  ASSERT_EQ(chmod(Folder().c_str(), 0755), 0);
  EXPECT_THAT(MakeFolder().message(), HasSubstr("chmod o= " + Folder()));
  ASSERT_EQ(chown(Folder().c_str(), 0, 0), 0);
  EXPECT_THAT(MakeFolder().message(), HasSubstr("chown -R nobody: " + Folder()));
  EXPECT_EQ(MakeProjectFolder("s3://bucket/vision/job-1", kNobody), absl::OkStatus());
}

TEST_F(UnixUserTest, CredentialsOfAProjectAreItsOperatorsToGive) {
  const std::string path = folder_ + "/vision.env";
  const auto read = [&] { return ReadProjectEnvironment(folder_, "projects/vision/jobs/a"); };
  EXPECT_FALSE(read()->has_value());
  std::ofstream(path) << "# of the store\n\nAWS_ACCESS_KEY_ID=a=b\nAWS_REGION=\n";
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  EXPECT_EQ(read().status().code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(**read(), ElementsAre(Pair("AWS_ACCESS_KEY_ID", "a=b"), Pair("AWS_REGION", "")));
  std::ofstream(path) << "AWS_A=1\nLD_PRELOAD=swordfish\n";
  EXPECT_THAT(read().status().message(), HasSubstr("vision.env: line 2: expected AWS_NAME=VALUE"));
  EXPECT_THAT(read().status().message(), ::testing::Not(HasSubstr("swordfish")));
  EXPECT_FALSE(ReadProjectEnvironment(folder_, "projects/../jobs/a")->has_value());
}

}  // namespace
}  // namespace trainyard
