#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "tests/simulation/yard.h"

namespace trainyard {
namespace {

constexpr int kShares = 8;  // that run side by side

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

class Simulation : public ::testing::TestWithParam<int> {};

// TRAINYARD_SEEDS how many yards, TRAINYARD_FIRST_SEED where to begin (one that failed),
// TRAINYARD_EVENTS in each.
TEST_P(Simulation, InvariantsHoldAfterEveryEventOfEveryYard) {
  spdlog::set_level(spdlog::level::off);
  // One thread: the search for mutexes that are locked in circles would be half of the work.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const int64_t seeds = FromEnvironment("TRAINYARD_SEEDS", 2000);
  const int64_t first = FromEnvironment("TRAINYARD_FIRST_SEED", 1);
  const int events = static_cast<int>(FromEnvironment("TRAINYARD_EVENTS", 5000));
  int64_t yards = 0;
  std::map<std::string, int64_t> tally;
  for (int64_t seed = first + GetParam(); seed < first + seeds; seed += kShares) {
    Yard yard(seed);
    const std::string breach = yard.Run(events);
    ASSERT_EQ(breach, "") << "seed " << seed << " (TRAINYARD_FIRST_SEED=" << seed
                          << " TRAINYARD_SEEDS=1 TRAINYARD_EVENTS=" << events << " repeats it)";
    ++yards;
    for (const auto& [what, count] : yard.Tally()) tally[what] += count;
  }
  if (yards == 0) GTEST_SKIP() << "fewer yards than shares";
  std::printf("%ld yards, %ld events", yards, yards * events);
  for (const auto& [what, count] : tally) std::printf(", %ld %s", count, what.c_str());
  std::printf("\n");
  EXPECT_GT(tally["succeeded jobs"] * 4, tally["jobs"])
      << "a yard in which nothing succeeds tests nothing";
  if (yards * events < 500000) return;  // too few for all that is rare
  for (const char* what :
       {"agents under a name that is taken", "fail-overs of the store", "full disks",
        "gangs that compute in two ways", "gangs that left for another layout",
        "interleaved transactions", "jobs bound to what they began with",
        "jobs of another range of slots", "jobs that grew", "jobs that shrank", "killed servers",
        "lost jobs that went on where they were", "lost nodes",
        "projects that had all of their slots", "ranks that left the state of a broken gang",
        "refused agents", "upgraded agents", "wiped agents"}) {
    EXPECT_GT(tally[what], 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Share, Simulation, ::testing::Range(0, kShares));

}  // namespace
}  // namespace trainyard
