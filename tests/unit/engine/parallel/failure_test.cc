// Ranks that hang and leave: what only communicators between hosts tell, over either kind of link.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "tests/unit/engine/parallel/gang.h"
#include "tests/unit/engine/parallel/rounds.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Failure : public ::testing::TestWithParam<LinkKind> {};

INSTANTIATE_TEST_SUITE_P(Links, Failure, ::testing::Values(LinkKind::kMemory, LinkKind::kTcp),
                         [](const ::testing::TestParamInfo<LinkKind>& info) {
                           return info.param == LinkKind::kMemory ? "Memory" : "Tcp";
                         });

// Rank 2 stops making calls. Rank 1 waits for it, and rank 0 only for rank 1.
TEST_P(Failure, ARankThatMakesNoProgressIsNamedWithItsLastCollective) {
  auto ranks = TestRendezvous(3, GetParam());
  for (Rendezvous& rendezvous : ranks) {
    rendezvous.silence = absl::Seconds(2);
    rendezvous.progress_timeout = absl::Seconds(2);
  }
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say& say) -> absl::Status {
              communicator.SetPatience(absl::InfiniteDuration());  // without effect
              std::string byte = "x";
              TY_RETURN_IF_ERROR(communicator.Broadcast(0, absl::MakeSpan(byte)));
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 2) {
                say("hangs");
                for (;;) pause();
              }
              const int awaited = communicator.rank() == 1 ? 2 : 1;
              return communicator.Exchange({{.peer = awaited, .receive = absl::MakeSpan(byte)}});
            }));
  ASSERT_TRUE(gang.Hears(2, "hangs"));
  for (const int r : {0, 1}) {
    EXPECT_THAT(
        gang.Result(r),
        AllOf(StartsWith(absl::StrCat("DEADLINE_EXCEEDED: ", Name(ranks, 2),
                                      ", after barrier 2, did not do its part of exchange")),
              HasSubstr(" for 2s: it hangs, or is that slow")))
        << r;
  }
}

TEST_P(Failure, ARankThatIsNeededAfterItLeftIsNamed) {
  const auto ranks = TestRendezvous(3, GetParam());
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(communicator.Barrier());
              if (communicator.rank() == 2) return absl::OkStatus();
              return communicator.Barrier();
            }));
  for (const int r : {0, 1}) {
    EXPECT_EQ(gang.Result(r), absl::StrCat("UNAVAILABLE: ", Name(ranks, 2), " left")) << r;
  }
  EXPECT_EQ(gang.Result(2), "");
}

}  // namespace
}  // namespace trainyard::engine::testing
