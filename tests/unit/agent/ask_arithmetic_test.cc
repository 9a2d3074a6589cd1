#include "executor/agent/ask_arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/unit/run/scratch.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

class AskArithmeticTest : public run::Scratch {
 protected:
  // A worker that does what a shell is told to.
  absl::StatusOr<Arithmetic> Ask(const std::string& script,
                                 absl::Duration patience = absl::Seconds(20)) {
    const std::string path = folder_ + "/worker";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    chmod(path.c_str(), 0700);
    return AskArithmetic(path, "cuda:1", patience);
  }
};

TEST_F(AskArithmeticTest, TakesTheLastLineOfTheAnswer) {
  const auto told =
      Ask("[ \"$*\" = 'arithmetic --device cuda:1' ] || exit 1\n"
          "echo a warning: beware >&2\n"
          "echo 'device: GPU; cuDNN: 91900'");
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(*told, (Arithmetic{{"device", "GPU"}, {"cuDNN", "91900"}}));
}

TEST_F(AskArithmeticTest, AWorkerOfBeforeDoesNotSay) {
  const auto told = Ask("echo unknown command >&2; exit 64");
  EXPECT_EQ(told.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(told.status().message()), HasSubstr("exit code 64: unknown command"));
}

TEST_F(AskArithmeticTest, WhatIsNoFingerprintIsNotTaken) {
  EXPECT_EQ(Ask("echo hello").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ask("true").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(AskArithmeticTest, AWorkerThatHangsIsKilled) {
  const auto told = Ask("while :; do sleep 60; done", absl::Milliseconds(50));
  EXPECT_EQ(told.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AskArithmeticTest, AProgramThatIsMissingIsNamed) {
  EXPECT_FALSE(AskArithmetic(folder_ + "/nothing", "cpu", absl::Seconds(20)).ok());
}

}  // namespace
}  // namespace trainyard
