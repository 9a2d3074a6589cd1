#include "server/fleet/provision/slurm/squeue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/fleet/provision/slurm/slurm_engine.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(Squeue, TellsWhatIsOursInTheOrderOfIds) {
  const std::vector<Allocation> found = ParseQueue(
      "trainyard:y|a-00ff|1|12_1|RUNNING|1:05|n1|None\n"
      "trainyard:y|a-00ff|2|12_2|PENDING|0:00|n1|Resources\n"
      "trainyard:y|a-00ff|3|12_3|NODE_FAIL|2:00:00|n1|NodeDown\n"
      "trainyard:y|a-00ff|4|9_4|CANCELLED|0:00|n1|None\n"
      "trainyard:y|a-00ff|5|100_5|COMPLETING|0:00|n1|None\n"
      "trainyard:other|a-00ff|1|13_1|RUNNING|1:05|n1|None\n"
      "(null)|wrap|N/A|14|RUNNING|1:05|n1|a|b|c\n"
      "trainyard:y|a-00ff|x|15_1|RUNNING|1:05|n1|None\n"
      "nonsense\n\n",
      "trainyard:y");
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0].machine, "n1");
  EXPECT_EQ(found[0].id, "9_4");
  EXPECT_EQ(found[0].state, Allocation::State::kOver);
  EXPECT_TRUE(found[0].proven_gone);
  EXPECT_EQ(found[1].node, "a-00ff-1");
  EXPECT_EQ(found[1].state, Allocation::State::kRuns);
  EXPECT_EQ(found[1].ran, absl::Seconds(65));
  EXPECT_EQ(found[1].words, "Slurm RUNNING");
  EXPECT_EQ(found[2].state, Allocation::State::kWaits);
  EXPECT_EQ(found[2].words, "Slurm PENDING (Resources)");
  EXPECT_EQ(found[3].state, Allocation::State::kOver);
  EXPECT_FALSE(found[3].proven_gone) << "nobody saw what became of its processes";
  EXPECT_EQ(found[4].id, "100_5");
  EXPECT_EQ(found[4].state, Allocation::State::kRuns);
}

TEST(Squeue, TellsWhatNobodyWillStart) {
  const auto stuck = [](const std::string& state, const std::string& reason) {
    return ParseQueue("trainyard:y|a-00ff|1|12_1|" + state + "|0:00|n1|" + reason, "trainyard:y")[0]
        .stuck;
  };
  EXPECT_TRUE(stuck("PENDING", "JobHeldAdmin"));
  EXPECT_TRUE(stuck("PENDING", "launch failed requeued held"));
  EXPECT_TRUE(stuck("PENDING", "BadConstraints"));
  EXPECT_FALSE(stuck("PENDING", "Resources"));
  EXPECT_FALSE(stuck("PENDING", "Priority"));
  EXPECT_FALSE(stuck("RUNNING", "JobHeldAdmin"));
}

TEST(Sinfo, TellsWhichMachinesCanBeBelieved) {
  EXPECT_THAT(ParseSoundMachines("n1|idle\nn2|mixed\nn3|idle*\nn4|down\nn5|drained\nn6|DRAINING\n"
                                 "n7|allocated+cloud\nnonsense\n\n"),
              ::testing::ElementsAre("n1", "n2", "n7"));
}

TEST(Squeue, TellsHowLongAJobHasRun) {
  EXPECT_EQ(ParseElapsed("0:00"), absl::ZeroDuration());
  EXPECT_EQ(ParseElapsed("12:34"), absl::Seconds(754));
  EXPECT_EQ(ParseElapsed("3:00:01"), absl::Hours(3) + absl::Seconds(1));
  EXPECT_EQ(ParseElapsed("2-03:00:01"), absl::Hours(51) + absl::Seconds(1));
  for (const char* wrong : {"", "N/A", "INVALID", "1-", "-1:00", "1:2:x"}) {
    EXPECT_EQ(ParseElapsed(wrong), absl::ZeroDuration()) << wrong;
  }
}

TEST(Sbatch, SaysWhatIsOursLast) {
  Pool pool{.name = "a", .max = 2};
  pool.slurm = {.script = "/s", .options = {"--partition=gpu"}, .leave = absl::Milliseconds(1500)};
  const std::vector<std::string> arguments = BatchArguments(pool, "a-00ff", {1, 3}, "y");
  ASSERT_GT(arguments.size(), 4u);
  EXPECT_EQ(arguments[0], "sbatch");
  EXPECT_EQ(arguments[2], "--partition=gpu");
  EXPECT_EQ(arguments.back(), "/s");
  for (const char* own : {"--job-name=a-00ff", "--array=1,3", "--comment=trainyard:y",
                          "--export=ALL", "--no-requeue", "--signal=B:USR1@2"}) {
    EXPECT_THAT(arguments, Contains(own));
  }
}

TEST(SlurmEngineTest, SaysThatThereIsNoSlurm) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  SlurmEngine engine("y");
  const absl::Status listed = engine.List().status();
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(listed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(listed.message()), HasSubstr("squeue"));
}

}  // namespace
}  // namespace trainyard
