// What a restore reads of files, and how a server notices that it is needed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/audit/kept_heads.h"
#include "server/auth/revocation_list.h"
#include "server/restore/checkpoint_folders.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RestoreFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/trainyard-restore-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  std::string JobFolder() const { return root_ + "/default/job-1"; }
  std::string StepFolder(int64_t step) const {
    return absl::StrFormat("%s/step-%08d", JobFolder(), step);
  }
  // A whole checkpoint, of which `more` is a part of the manifest.
  void MakeCheckpoint(int64_t step, int64_t rollbacks = 0, const std::string& more = "") {
    std::string files;
    for (const char* name : {"config.json", "model.safetensors",
                             "trainer_state/optimizer.safetensors", "trainer_state/state.json"}) {
      const std::string text = absl::StrCat("{\"rollbacks\": ", rollbacks, "}");
      Write(absl::StrCat(StepFolder(step), "/", name), text);
      absl::StrAppend(&files, files.empty() ? "" : ", ", "{\"name\": \"", name,
                      "\", \"bytes\": ", text.size(), "}");
    }
    Write(StepFolder(step) + "/manifest.json",
          absl::StrCat("{\"step\": ", step, ", \"weights_sha256\": \"", std::string(64, 'a'),
                       "\", ", more, "\"files\": [", files, "]}"));
  }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    const auto there = LookAtCheckpoints("file://" + JobFolder());
    EXPECT_TRUE(there.ok()) << there.status();
    for (const CheckpointRecord& one : *there) steps.push_back(one.step);
    return steps;
  }

  std::string root_;
};

TEST_F(RestoreFiles, WholeCheckpointsAreFound) {
  MakeCheckpoint(0);
  MakeCheckpoint(20, 0, "\"metrics\": {\"loss\": 1.5, \"text\": \"x\"}, ");
  const auto there = LookAtCheckpoints("file://" + JobFolder());
  ASSERT_TRUE(there.ok());
  ASSERT_EQ(there->size(), 2);
  EXPECT_EQ((*there)[1].step, 20);
  EXPECT_EQ((*there)[1].uri, "file://" + StepFolder(20));
  EXPECT_EQ((*there)[1].bytes, 4 * 16);
  EXPECT_THAT((*there)[1].metrics, ElementsAre(std::make_pair("loss", 1.5)));
  EXPECT_THAT(*ListJobFolders("file://" + root_), ElementsAre("file://" + JobFolder()));
  EXPECT_THAT(*LookAtCheckpoints("file://" + root_ + "/nothing"), IsEmpty());
}

TEST_F(RestoreFiles, WhatIsNotWholeIsNotThere) {
  for (const int64_t step : {1, 2, 3, 4, 5, 6, 7}) MakeCheckpoint(step);
  std::filesystem::resize_file(StepFolder(1) + "/model.safetensors", 1);
  std::filesystem::remove(StepFolder(2) + "/config.json");
  std::filesystem::remove(StepFolder(3) + "/model.safetensors");
  std::filesystem::create_symlink(StepFolder(6) + "/model.safetensors",
                                  StepFolder(3) + "/model.safetensors");
  std::filesystem::remove(StepFolder(4) + "/manifest.json");
  ASSERT_EQ(mkfifo((StepFolder(4) + "/manifest.json").c_str(), 0600), 0);
  std::filesystem::rename(StepFolder(5), JobFolder() + "/step-0005");  // as nobody writes it
  std::filesystem::create_directory_symlink(StepFolder(6), StepFolder(8));
  std::filesystem::rename(StepFolder(7), JobFolder() + "/.step-00000007");
  EXPECT_THAT(Steps(), ElementsAre(6));
}

TEST_F(RestoreFiles, WhatAManifestSaysIsNotBelieved) {
  MakeCheckpoint(1, 0, "\"metrics\": {\"a\\u0000\": 1}, ");
  MakeCheckpoint(2, 0, "\"metrics\": {\"\\u001b[2J\": 1}, ");
  std::string many;
  for (int i = 0; i < 65; ++i) absl::StrAppend(&many, many.empty() ? "" : ", ", "\"m", i, "\": 1");
  MakeCheckpoint(3, 0, absl::StrCat("\"metrics\": {", many, "}, "));
  MakeCheckpoint(4);
  Write(StepFolder(4) + "/manifest.json", absl::StrCat("{\"step\": 4, \"weights_sha256\": \"",
                                                       std::string(64, 'a'), "\", \"files\": []}"));
  MakeCheckpoint(5);
  Write(StepFolder(5) + "/manifest.json",
        absl::StrCat("{\"step\": 5, \"weights_sha256\": \"", std::string(64, 'a'),
                     "\", \"files\": [{\"name\": \"../../../etc/passwd\", \"bytes\": 1}]}"));
  MakeCheckpoint(6);
  Write(StepFolder(6) + "/manifest.json", "{\"step\": 6, \"weights_sha256\": 7}");
  MakeCheckpoint(7);
  Write(StepFolder(7) + "/manifest.json", std::string(5000, '['));
  EXPECT_THAT(Steps(), IsEmpty());
}

TEST_F(RestoreFiles, WhatARunWentBackFromIsNotThere) {
  MakeCheckpoint(10);
  MakeCheckpoint(20, 1);
  MakeCheckpoint(30);  // left behind
  MakeCheckpoint(40);
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
}

TEST_F(RestoreFiles, WhatCannotBeReadIsAnError) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  MakeCheckpoint(10);
  ASSERT_EQ(chmod(StepFolder(10).c_str(), 0), 0);
  EXPECT_FALSE(LookAtCheckpoints("file://" + JobFolder()).ok());
  chmod(StepFolder(10).c_str(), 0700);
}

TEST_F(RestoreFiles, RevocationsAreWrittenDownWithTheirBeginning) {
  const std::string path = root_ + "/revocations";
  RevocationList list(path, SystemClock());
  ASSERT_TRUE(list.Begin().ok());
  ASSERT_TRUE(list.Keep({CredentialKind::kNodeKey, "ab:cd"}).ok());
  ASSERT_TRUE(RevocationList(path, SystemClock()).Begin().ok());  // the next process goes on
  std::ifstream file(path);
  std::string begun, revoked, more;
  std::getline(file, begun);
  std::getline(file, revoked);
  EXPECT_TRUE(ParseRevocationsBegunLine(begun).has_value()) << begun;
  EXPECT_FALSE(ParseRevocationLine(begun).has_value());
  EXPECT_EQ(ParseRevocationLine(revoked), (RevokedCredential{CredentialKind::kNodeKey, "ab:cd"}));
  EXPECT_FALSE(std::getline(file, more)) << more;
  for (const char* wrong : {"", "x", "[]", "{\"revoked\": \"house\", \"id\": \"1\"}",
                            "{\"revoked\": \"token\", \"id\": \"\"}"}) {
    EXPECT_FALSE(ParseRevocationLine(wrong).has_value()) << wrong;
  }
}

TEST_F(RestoreFiles, ARevocationThatCannotBeWrittenDownIsTold) {
  RevocationList list(root_ + "/no/such/folder", SystemClock());
  EXPECT_EQ(list.Begin().code(), absl::StatusCode::kNotFound);
  const absl::Status told = list.Keep({CredentialKind::kToken, "1"});
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(told.message()), HasSubstr("it is revoked, but"));
}

TEST_F(RestoreFiles, AServerNoticesThatTheAuditLacksWhatItHad) {
  FakeClock clock;
  MemoryStores stores(clock);
  const std::string path = root_ + "/heads";
  EXPECT_TRUE(CheckKeptHeads("", stores.audit(), 1).ok());
  EXPECT_TRUE(CheckKeptHeads(path, stores.audit(), 1).ok()) << "there is no file yet";
  AuditEntry entry{.chain = "c", .sequence = 1, .method = "SubmitJob"};
  entry.digest = AuditDigest("", entry);
  Write(path, AuditHeadLine({"c", 1, entry.digest, 1}, absl::Now()) + "\nhalf a li");
  EXPECT_EQ(CheckKeptHeads(path, stores.audit(), 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(CheckKeptHeads(path, stores.audit(), 2).ok()) << "it was restored since";
  ASSERT_TRUE(stores.audit().AppendAudit({entry}).ok());
  EXPECT_TRUE(CheckKeptHeads(path, stores.audit(), 1).ok());
}

}  // namespace
}  // namespace trainyard
