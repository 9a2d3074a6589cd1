#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "tests/simulation/yard.h"

namespace trainyard {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// TRAINYARD_SEEDS more or fewer yards, TRAINYARD_FIRST_SEED where to begin (one that failed).
TEST(Simulation, InvariantsHoldAfterEveryEventOfEveryYard) {
  spdlog::set_level(spdlog::level::off);
  const int64_t seeds = FromEnvironment("TRAINYARD_SEEDS", 1000);
  const int64_t first = FromEnvironment("TRAINYARD_FIRST_SEED", 1);
  const int events = static_cast<int>(FromEnvironment("TRAINYARD_EVENTS", 600));
  int64_t jobs = 0, succeeded = 0;
  for (int64_t seed = first; seed < first + seeds; ++seed) {
    Yard yard(seed);
    const std::string breach = yard.Run(events);
    ASSERT_EQ(breach, "") << "seed " << seed << " (TRAINYARD_FIRST_SEED=" << seed
                          << " TRAINYARD_SEEDS=1 repeats it)";
    jobs += yard.jobs();
    succeeded += yard.succeeded();
  }
  std::printf("%ld yards, %ld jobs, %ld succeeded\n", seeds, jobs, succeeded);
  EXPECT_GT(succeeded * 3, jobs) << "a yard in which nothing succeeds tests nothing";
}

}  // namespace
}  // namespace trainyard
