// Who meets, and who is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "executor/engine/parallel/sockets.h"
#include "tests/unit/engine/parallel/gang.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::Status OneBarrier(Communicator& communicator, const Gang::Say&) {
  return communicator.Barrier();
}

TEST(Meet, RanksWithADifferentVersionLearnBoth) {
  auto ranks = TestRendezvous(2, LinkKind::kTcp);
  ranks[1].version = "other";
  Gang gang(ranks, Meeting(OneBarrier));
  const auto results = gang.Results();
  EXPECT_EQ(results[0], absl::StrCat("Meet: FAILED_PRECONDITION: rank 1 (", ranks[0].addresses[1],
                                     "): its version is \"other\", that of rank 0 is \"test\""));
  EXPECT_EQ(results[1], absl::StrCat("Meet: FAILED_PRECONDITION: rank 0 (", ranks[0].addresses[0],
                                     "): its version is \"test\", that of rank 1 is \"other\""));
}

TEST(Meet, WhoDoesNotKnowTheSecretIsRefusedAndTheOthersMeet) {
  const auto ranks = TestRendezvous(3, LinkKind::kTcp);
  Rendezvous stranger = ranks[2];
  stranger.secret = "guessed";
  stranger.listening_fd = -1;
  Gang early({ranks[0], ranks[1]}, Meeting(OneBarrier));
  Gang strangers({stranger}, Meeting(OneBarrier));
  EXPECT_THAT(strangers.Result(0), AllOf(StartsWith("Meet: PERMISSION_DENIED: rank "),
                                         HasSubstr("does not know the secret")));
  Gang late({ranks[2]}, Meeting(OneBarrier));
  EXPECT_THAT(late.Results(), Each(""));
  EXPECT_THAT(early.Results(), Each(""));
}

TEST(Meet, MissingRanksAreNamedAtTheDeadline) {
  auto ranks = TestRendezvous(4, LinkKind::kTcp);
  for (Rendezvous& rendezvous : ranks) rendezvous.timeout = absl::Milliseconds(500);
  Gang gang({ranks[0], ranks[2]}, Meeting(OneBarrier));
  for (const std::string& result : gang.Results()) {
    EXPECT_THAT(result, AllOf(StartsWith("Meet: DEADLINE_EXCEEDED"),
                              HasSubstr(absl::StrCat("rank 1 (", ranks[0].addresses[1], ")")),
                              HasSubstr(absl::StrCat("rank 3 (", ranks[0].addresses[3], ")"))));
  }
}

}  // namespace
}  // namespace trainyard::engine::testing
