#include "server/fleet/provision/slurm/run_command.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "storage/base/clock.h"

namespace trainyard {
namespace {

TEST(RunCommand, TellsWhatWasPrintedAndHowItEnded) {
  const auto result = RunCommand({"sh", "-c", "echo out; echo err >&2; exit 3"}, absl::Minutes(1));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "out\n");
  EXPECT_EQ(result->err, "err\n");
  EXPECT_EQ(result->exit_code, 3);
  const auto killed = RunCommand({"sh", "-c", "kill -9 $$"}, absl::Minutes(1));
  ASSERT_TRUE(killed.ok());
  EXPECT_EQ(killed->exit_code, 128 + 9);
  EXPECT_EQ(RunCommand({"/nowhere/at/all"}, absl::Minutes(1)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(RunCommand, TakesMoreThanAPipeHolds) {
  const auto result = RunCommand(
      {"sh", "-c", "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"}, absl::Minutes(1));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out.size(), 300000u);
  EXPECT_EQ(result->err.size(), 300000u);
}

TEST(RunCommand, EndsWhatDoesNotAnswerWithAllThatItStarted) {
  const absl::Duration begun = SystemClock().SinceBoot();
  const auto result = RunCommand({"sh", "-c", "sleep 600 & sleep 600"}, absl::Milliseconds(200));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(SystemClock().SinceBoot() - begun, absl::Seconds(60));
}

TEST(RunCommand, GetsNoSecretOfOurEnvironment) {
  setenv("PGPASSWORD", "secret", 1);
  const auto result = RunCommand({"env"}, absl::Minutes(1));
  unsetenv("PGPASSWORD");
  ASSERT_TRUE(result.ok());
  EXPECT_NE(result->out.find("PATH="), std::string::npos);
  EXPECT_EQ(result->out.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace trainyard
