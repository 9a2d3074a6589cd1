#include "storage/objects/packed_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kPlenty = 1 << 20;

class PackedFolderTest : public testing::Test {
 protected:
  int64_t Size() const { return lseek(file_.get(), 0, SEEK_END); }

  void Pack(const std::map<std::string, std::string>& files) const {
    auto folder = PackedFolderWriter::Begin(file_.get(), kPlenty);
    ASSERT_TRUE(folder.ok()) << folder.status();
    for (const auto& [name, text] : files) {
      auto writer = (*folder)->Create(name);
      ASSERT_TRUE(writer.ok());
      ASSERT_TRUE((*writer)->Append(text).ok());
      ASSERT_TRUE((*writer)->Finish().ok());
    }
    ASSERT_TRUE((*folder)->Commit().ok());
  }

  absl::StatusOr<std::unique_ptr<PackedFolder>> Open() const {
    return PackedFolder::Open(FileDescriptor(dup(file_.get())), "memory:x");
  }

  const FileDescriptor file_{memfd_create("test", MFD_CLOEXEC)};
};

TEST_F(PackedFolderTest, HoldsWhatWasWritten) {
  Pack({{"a.json", "{}"}, {"below/b", std::string(70000, 'b')}, {"below/empty", ""}});
  const auto folder = Open();
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ((*folder)->bytes(), Size());
  EXPECT_EQ(*(*folder)->Get("memory:x/a.json", 100), "{}");
  EXPECT_EQ(*(*folder)->Get("memory:x/below/empty", 0), "");
  EXPECT_EQ((*folder)->Get("memory:x/below/b", 69999).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(*(*folder)->List("memory:x"), ElementsAre("a.json", "below"));
  EXPECT_THAT(*(*folder)->List("memory:x/below"), ElementsAre("b", "empty"));
  EXPECT_THAT((*folder)->List("memory:other").value(), IsEmpty());
  for (const char* missing : {"memory:x/c", "memory:y/a.json", "a.json", "memory:x"}) {
    EXPECT_TRUE(absl::IsNotFound((*folder)->Open(missing).status())) << missing;
  }
  const auto reader = (*folder)->Open("memory:x/below/b");
  char byte = 0;
  EXPECT_TRUE((*reader)->Read(69999, 1, &byte).ok());
  EXPECT_EQ(byte, 'b');
  EXPECT_FALSE((*reader)->Read(69999, 2, &byte).ok());
  EXPECT_FALSE((*reader)->Read(-1, 1, &byte).ok());
  EXPECT_TRUE(absl::IsUnimplemented((*folder)->Delete("memory:x/a.json")));
}

TEST_F(PackedFolderTest, HoldsNothingUnlessItIsCommitted) {
  Pack({{"old", "x"}});
  {
    auto folder = PackedFolderWriter::Begin(file_.get(), 10);
    auto writer = (*folder)->Create("new");
    ASSERT_TRUE((*writer)->Append("0123456789").ok());
    EXPECT_EQ((*writer)->Append("x").code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(Size(), 0);
  EXPECT_TRUE(absl::IsNotFound(Open().status()));
}

// Whoever wrote it may have been another program.
TEST_F(PackedFolderTest, WhatIsInTheFileIsNotBelieved) {
  Pack({{"a", "content"}});
  std::string whole(Size(), '\0');
  ASSERT_EQ(pread(file_.get(), whole.data(), whole.size(), 0), static_cast<ssize_t>(whole.size()));
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const char c : {'\0', '9', '\xff'}) {
      std::string changed = whole;
      changed[i] = c;
      ASSERT_EQ(pwrite(file_.get(), changed.data(), changed.size(), 0),
                static_cast<ssize_t>(changed.size()));
      const auto folder = Open();
      if (!folder.ok()) {
        EXPECT_TRUE(absl::IsDataLoss(folder.status())) << folder.status();
        continue;
      }
      const std::vector<std::string> names = (*folder)->List("memory:x").value();
      for (const std::string& name : names) {
        const auto text = (*folder)->Get(absl::StrCat("memory:x/", name), kPlenty);
        EXPECT_LE(text.value_or("").size(), whole.size());
      }
    }
  }
  for (size_t n = 1; n < whole.size(); ++n) {
    ASSERT_EQ(ftruncate(file_.get(), static_cast<off_t>(n)), 0);
    EXPECT_TRUE(absl::IsDataLoss(Open().status())) << n;
  }
}

TEST_F(PackedFolderTest, FilesThatDoNotLieInItAreRefused) {
  for (const std::string index :
       {R"({"a":[0,9]})", R"({"a":[-1,1]})", R"({"a":[1,-1]})", R"({"a":[9223372036854775807,1]})",
        R"({"a":[1,9223372036854775807]})", R"({"a":[1]})", R"({"a":[1,1e300]})",
        R"({"a":["0",1]})", R"([[0,1]])", "{"}) {
    std::string file = "12345678" + index;
    for (uint64_t i = 0, n = index.size(); i < 8; ++i, n >>= 8) file += static_cast<char>(n & 255);
    file += "TYFOLDER";
    ASSERT_EQ(ftruncate(file_.get(), 0), 0);
    ASSERT_EQ(pwrite(file_.get(), file.data(), file.size(), 0), static_cast<ssize_t>(file.size()));
    const auto folder = Open();
    EXPECT_TRUE(absl::IsDataLoss(folder.status())) << index << ": " << folder.status();
  }
}

}  // namespace
}  // namespace trainyard
