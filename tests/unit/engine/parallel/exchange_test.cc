// What only communicators between hosts do, over either kind of link, between real processes.

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "tests/unit/engine/parallel/gang.h"
#include "tests/unit/engine/parallel/rounds.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::Each;

class Exchange : public ::testing::TestWithParam<LinkKind> {
 protected:
  static std::vector<std::string> Run(int ranks, const CommunicatorBody& body) {
    return Gang(TestRendezvous(ranks, GetParam()), Meeting(body)).Results();
  }
};

INSTANTIATE_TEST_SUITE_P(Links, Exchange, ::testing::Values(LinkKind::kMemory, LinkKind::kTcp),
                         [](const ::testing::TestParamInfo<LinkKind>& info) {
                           return info.param == LinkKind::kMemory ? "Memory" : "Tcp";
                         });

TEST_P(Exchange, ItUsesTheLinksItShould) {
  const std::string expected = GetParam() == LinkKind::kMemory
                                   ? "3 ranks: 2 others by shared memory, 0 by TCP"
                                   : "3 ranks: 0 others by shared memory, 2 by TCP";
  EXPECT_THAT(Run(3,
                  [&](Communicator& communicator, const Gang::Say&) {
                    return communicator.description() == expected
                               ? absl::OkStatus()
                               : absl::InternalError(communicator.description());
                  }),
              Each(""));
}

TEST_P(Exchange, ADifferentLengthIsAnErrorAtBothEnds) {
  EXPECT_THAT(
      Run(2,
          [](Communicator& communicator, const Gang::Say&) -> absl::Status {
            std::string sent(8, 'x');
            std::string received(communicator.rank() == 0 ? 16 : 8, '-');
            const Transfer transfer = {
                .peer = 1 - communicator.rank(), .send = sent, .receive = absl::MakeSpan(received)};
            TY_RETURN_IF_ERROR(communicator.Exchange({transfer}));
            return communicator.Barrier();
          }),
      Each(::testing::ContainsRegex("rank 1 .* sent 8 bytes where 16 were expected by rank 0 .*")));
}

TEST_P(Exchange, NothingWhereSomethingWasExpectedIsAnErrorAtBothEnds) {
  EXPECT_THAT(
      Run(2,
          [](Communicator& communicator, const Gang::Say&) -> absl::Status {
            std::string sent(communicator.rank() == 0 ? 8 : 0, 'x');
            std::string received(8, '-');
            const Transfer transfer = {
                .peer = 1 - communicator.rank(), .send = sent, .receive = absl::MakeSpan(received)};
            TY_RETURN_IF_ERROR(communicator.Exchange({transfer}));
            return communicator.Barrier();
          }),
      Each(::testing::ContainsRegex("rank 1 .* sent 0 bytes where 8 were expected by rank 0 .*")));
}

TEST_P(Exchange, RanksMaySpinBeforeTheySleep) {
  auto ranks = TestRendezvous(2, GetParam());
  for (Rendezvous& rendezvous : ranks) rendezvous.spin = absl::Microseconds(50);
  Gang gang(ranks, Meeting([](Communicator& communicator, const Gang::Say&) {
              return RandomRounds(communicator, 50);
            }));
  EXPECT_THAT(gang.Results(), Each(""));
}

bool NamedSharedMemory() {
  DIR* const folder = opendir("/dev/shm");
  bool found = false;
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder)) {
    found |= absl::StrContains(entry->d_name, "trainyard");
  }
  if (folder != nullptr) closedir(folder);
  return found;
}

int OpenFds() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST_P(Exchange, NothingIsLeftOpen) {
  auto ranks = TestRendezvous(3, GetParam());
  Gang gang(ranks, [](const Rendezvous& rendezvous, const Gang::Say&) -> std::string {
    const int before = OpenFds();
    {
      auto communicator = Meet(rendezvous);
      if (!communicator.ok()) return communicator.status().ToString();
      if (OpenFds() <= before) return "nothing was open meanwhile";
      if (NamedSharedMemory()) return "there is something in /dev/shm";
      const absl::Status status = GatherAll(**communicator, 1, 2'000'000);
      if (!status.ok()) return status.ToString();
    }
    // The listener was open before.
    const int left = OpenFds() - (before - 1);
    return left == 0 ? "" : absl::StrCat(left, " file descriptors are left");
  });
  EXPECT_THAT(gang.Results(), Each(""));
}

}  // namespace
}  // namespace trainyard::engine::testing
