#include "executor/agent/log_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "storage/base/file.h"
#include "tests/unit/run/scratch.h"

namespace trainyard {
namespace {

class LogFileTest : public run::Scratch {
 protected:
  void Print(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }

  const std::string path_ = folder_ + "/log";
  LogFile log_{path_};
};

TEST_F(LogFileTest, MissingLogIsEmpty) {
  const auto chunk = log_.Read(-100, 100);
  ASSERT_TRUE(chunk.ok());
  EXPECT_EQ(chunk->data, "");
  EXPECT_EQ(chunk->end, 0);
  EXPECT_EQ(log_.LastLines(100), "");
}

TEST_F(LogFileTest, OffsetsGoOnOverRotation) {
  Print("0123456789");
  ASSERT_TRUE(log_.RotateIfLarger(9).ok());
  Print("abcde");
  EXPECT_EQ(*ReadFile(path_), "abcde") << "what was copied is gone from the file";
  EXPECT_EQ(log_.Read(0, 100)->data, "0123456789abcde");
  EXPECT_EQ(log_.Read(8, 4)->data, "89ab");
  EXPECT_EQ(log_.Read(12, 100)->data, "cde");
  EXPECT_EQ(log_.Read(-3, 100)->offset, 12);

  ASSERT_TRUE(log_.RotateIfLarger(4).ok());
  Print("XY");
  const auto oldest = log_.Read(0, 100);
  EXPECT_EQ(oldest->data, "abcdeXY");
  EXPECT_EQ(oldest->offset, 10) << "skips what was rotated away";
  EXPECT_EQ(oldest->end, 17);
}

TEST_F(LogFileTest, OfAFloodOnlyTheEndIsKept) {
  std::string flood;
  while (flood.size() < 100'000) flood += std::to_string(flood.size()) + "\n";
  Print(flood);
  ASSERT_TRUE(log_.RotateIfLarger(1000).ok());
  Print("after\n");
  EXPECT_LE(ReadFile(path_ + ".1")->size(), 3000u);
  const auto all = log_.Read(0, 1 << 20);
  EXPECT_EQ(all->end, static_cast<int64_t>(flood.size()) + 6);
  EXPECT_EQ(all->data, (flood + "after\n").substr(all->offset));
  EXPECT_GT(all->data.size(), 2000u);
}

TEST_F(LogFileTest, SmallLogIsNotRotated) {
  Print("12345");
  ASSERT_TRUE(log_.RotateIfLarger(5).ok());
  EXPECT_EQ(*ReadFile(path_), "12345");
}

TEST_F(LogFileTest, LastLinesAreWhole) {
  Print("first line\nsecond line\nthird line\n");
  EXPECT_EQ(log_.LastLines(25), "second line\nthird line\n");
  EXPECT_EQ(log_.LastLines(1000), "first line\nsecond line\nthird line\n");
}

TEST_F(LogFileTest, LastLinesReachBackOverARotation) {
  Print("first\nsecond\n");
  ASSERT_TRUE(log_.RotateIfLarger(12).ok());
  Print("third\n");
  EXPECT_EQ(log_.LastLines(15), "second\nthird\n");
}

TEST_F(LogFileTest, EvidenceIsAlwaysTextThatADatabaseTakes) {
  Print(std::string("a\0b\x1B[31m\xE4\xF6 \xC3\xA4 \xED\xA0\x80 \xF0\x9F\x98\x80\t!\n", 25));
  EXPECT_EQ(log_.LastLines(1000), "a?b?[31m?? \xC3\xA4 ??? \xF0\x9F\x98\x80\t!\n");
}

}  // namespace
}  // namespace trainyard
