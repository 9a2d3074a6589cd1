// Runs that measure the links between their ranks before they train.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/in_threads.h"
#include "tests/unit/engine/on_ranks.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(CheckLinks, TellsOnceAndChangesNoBit) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteText(folder.path()), 3);
  spec.mutable_parallel()->set_logical_ranks(2);
  const OnRanks plain(spec, folder.path() + "/plain", 2);
  spec.mutable_parallel()->set_check_links(true);
  const OnRanks checked(spec, folder.path() + "/checked", 2);
  plain.ExpectOk();
  checked.ExpectOk();
  EXPECT_THAT(plain.seen.notices, IsEmpty());
  EXPECT_THAT(checked.seen.notices, ElementsAre(StartsWith("links between ranks: 1 by ")));
  ASSERT_FALSE(plain.seen.checkpoints.empty());
  EXPECT_EQ(checked.seen.checkpoints.back().weights_sha256,
            plain.seen.checkpoints.back().weights_sha256);
}

TEST(CheckLinks, RanksThatAreAskedForOtherThingsSaySo) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteText(folder.path()), 3);
  spec.mutable_parallel()->set_logical_ranks(2);
  InThreads(2, [&](Communicator& communicator) {
    v1::JobSpec mine = spec;
    mine.mutable_parallel()->set_check_links(communicator.rank() == 1);
    const auto device = kernels::OpenCpu(1).value();
    RecordingObserver observer;
    const absl::Status status =
        RunOn(*device, mine, folder.path() + "/out", observer, std::nullopt, 1, &communicator)
            .status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("the spec differs between ranks"));
  });
}

}  // namespace
}  // namespace trainyard::engine
