#include "storage/objects/object_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "storage/base/ids.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ObjectStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root_);
    store_ = OpenObjectStore(root_).value();
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void StageOne(const std::string& folder, const std::string& name, const std::string& data,
                bool commit) {
    auto staged = store_->Stage(folder, "a1").value();
    auto writer = staged->Create(name).value();
    ASSERT_TRUE(writer->Append(data).ok());
    ASSERT_TRUE(writer->Finish().ok());
    if (!commit) return;
    ASSERT_TRUE(staged->Commit().ok());
  }

  const std::string root_ = ::testing::TempDir() + "objects-" + RandomHex(6);
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(ObjectStoreTest, WhatIsPutCanBeGot) {
  ASSERT_TRUE(store_->Put(root_ + "/a/b", "hello").ok());
  EXPECT_EQ(store_->Get("file://" + root_ + "/a/b", 100).value(), "hello");
  EXPECT_TRUE(absl::IsResourceExhausted(store_->Get(root_ + "/a/b", 4).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Get(root_ + "/a/c", 100).status()));
}

TEST_F(ObjectStoreTest, ReadingPastTheEndIsRefused) {
  ASSERT_TRUE(store_->Put(root_ + "/a", "hello").ok());
  const auto reader = store_->Open(root_ + "/a").value();
  char three[3];
  EXPECT_EQ(reader->size(), 5);
  ASSERT_TRUE(reader->Read(2, 3, three).ok());
  EXPECT_EQ(std::string(three, 3), "llo");
  EXPECT_TRUE(absl::IsOutOfRange(reader->Read(3, 3, three)));
}

TEST_F(ObjectStoreTest, AFolderIsNoObject) {
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Open(root_).status()));
}

TEST_F(ObjectStoreTest, AStagedFolderIsInvisibleUntilItIsCommitted) {
  auto staged = store_->Stage(root_ + "/step", "a1").value();
  auto writer = staged->Create("deep/file").value();
  ASSERT_TRUE(writer->Append("x").ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_THAT(store_->List(root_).value(), IsEmpty());
  ASSERT_TRUE(staged->Commit().ok());
  EXPECT_THAT(store_->List(root_).value(), ElementsAre("step"));
  EXPECT_EQ(store_->Get(root_ + "/step/deep/file", 10).value(), "x");
}

TEST_F(ObjectStoreTest, AStagedFolderThatIsDroppedLeavesNothing) {
  StageOne(root_ + "/step", "file", "x", /*commit=*/false);
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(ObjectStoreTest, ACommitNeverReplacesAnotherFolder) {
  StageOne(root_ + "/step", "file", "first", /*commit=*/true);
  auto staged = store_->Stage(root_ + "/step", "a2").value();
  auto writer = staged->Create("file").value();
  ASSERT_TRUE(writer->Append("second").ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(absl::IsAlreadyExists(staged->Commit()));
  staged.reset();
  EXPECT_EQ(store_->Get(root_ + "/step/file", 10).value(), "first");
  EXPECT_THAT(store_->List(root_).value(), ElementsAre("step"));
}

TEST_F(ObjectStoreTest, AFolderIsReplacedByAnother) {
  for (const std::string data : {"first", "second"}) {  // the first replaces nothing
    auto staged = store_->Stage(root_ + "/step", "a1").value();
    auto writer = staged->Create(data).value();
    ASSERT_TRUE(writer->Append(data).ok());
    ASSERT_TRUE(writer->Finish().ok());
    ASSERT_TRUE(staged->Replace().ok());
    EXPECT_EQ(store_->Get(root_ + "/step/" + data, 10).value(), data);
  }
  EXPECT_TRUE(absl::IsNotFound(store_->Get(root_ + "/step/first", 10).status()));
  const std::filesystem::directory_iterator left(root_);
  EXPECT_EQ(std::distance(begin(left), end(left)), 1);
}

// As a writer leaves it that is killed where the file system cannot exchange names.
TEST_F(ObjectStoreTest, WhatWasAboutToBeReplacedIsBroughtBack) {
  std::filesystem::create_directories(root_ + "/.old-step-00000001");
  std::ofstream(root_ + "/.old-step-00000001/file") << "old";
  std::filesystem::create_directories(root_ + "/.tmp-step-00000001-a1");
  std::filesystem::create_directories(root_ + "/.old-step-00000002");
  StageOne(root_ + "/step-00000002", "file", "new", /*commit=*/true);
  EXPECT_THAT(store_->List(root_).value(), ElementsAre("step-00000002"));
  ASSERT_TRUE(store_->DeleteStaged(root_).ok());
  EXPECT_EQ(store_->Get(root_ + "/step-00000001/file", 10).value(), "old");
  EXPECT_EQ(store_->Get(root_ + "/step-00000002/file", 10).value(), "new");
  const std::filesystem::directory_iterator left(root_);
  EXPECT_EQ(std::distance(begin(left), end(left)), 2);
}

TEST_F(ObjectStoreTest, WhatAKilledWriterStagedCanBeRemoved) {
  std::filesystem::create_directories(root_ + "/.tmp-step-00000001-a1");
  StageOne(root_ + "/step-00000002", "file", "x", /*commit=*/true);
  ASSERT_TRUE(store_->DeleteStaged(root_).ok());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/.tmp-step-00000001-a1"));
  EXPECT_THAT(store_->List(root_).value(), ElementsAre("step-00000002"));
  EXPECT_TRUE(store_->DeleteStaged(root_ + "/absent").ok());
}

TEST_F(ObjectStoreTest, DeletingIsRecursiveAndMayBeRepeated) {
  StageOne(root_ + "/step", "deep/file", "x", /*commit=*/true);
  EXPECT_TRUE(store_->Delete(root_ + "/step").ok());
  EXPECT_TRUE(store_->Delete(root_ + "/step").ok());
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST(ObjectStoreSchemes, WhatIsNotBuiltIsNamed) {
  for (const char* uri : {"s3://bucket/key", "http://host/key", "HTTPS://host/key"}) {
    const auto store = OpenObjectStore(uri);
    EXPECT_TRUE(absl::IsUnimplemented(store.status())) << uri;
    EXPECT_THAT(std::string(store.status().message()), HasSubstr("is not built yet")) << uri;
  }
}

TEST(ObjectStoreSchemes, OnlyAbsolutePathsAreTaken) {
  EXPECT_EQ(LocalPath("file:///data/x").value(), "/data/x");
  EXPECT_EQ(LocalPath("/data/x").value(), "/data/x");
  EXPECT_TRUE(absl::IsInvalidArgument(LocalPath("data/x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LocalPath("file://host/x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LocalPath("ftp://host/x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LocalPath(std::string("/a\0b", 4)).status()));
}

}  // namespace
}  // namespace trainyard
