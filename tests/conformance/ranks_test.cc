// What is kept of the ranks of a gang.

#include <map>
#include <string>

#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

TEST_P(StoreSuite, AnAttemptIsFoundWithItsRanks) {
  Register("n1");
  Submit("a", 2);
  JobRecord job = Get("a");
  EXPECT_EQ(fleet().FindAttempt("missing", 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(fleet().FindAttempt(job.uid, 0).status().message().find("never placed"),
            absl::string_view::npos);
  ASSERT_EQ(Place(job, {"n1", "n1"}, {0, 1}), 1);
  for (const int64_t number : {0, 1}) {
    const auto attempt = fleet().FindAttempt(job.uid, number);
    ASSERT_OK(attempt.status());
    EXPECT_EQ(attempt->attempt, 1);
    ASSERT_EQ(attempt->ranks.size(), 2u);
    EXPECT_EQ(attempt->ranks[1].slots, std::vector<int>{1});
  }
  EXPECT_EQ(fleet().FindAttempt(job.uid, 2).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StoreSuite, ValuesOfRanksThatThereAreNotAreRefusedAndCounted) {
  Register("n1");
  Submit("a", 2);
  ASSERT_EQ(Place(Get("a"), {"n1", "n1"}, {0, 1}), 1);
  const JobRecord job = Get("a");
  MetricRecord point{.step = 1, .values = {{"loss", 2}, {"rank.1.wait_ms", 1}}};
  point.values["rank.2.wait_ms"] = 1;
  const RankEvents report{
      .agent = "n1",
      .rank = {job.uid, 1, 0},
      .events = {{.sequence = 1, .what = RankRestored{}}, {.sequence = 2, .what = point}}};
  ASSERT_OK(fleet().AppendEvents(report).status());
  const auto rows = jobs().ReadMetrics(job.uid, {});
  ASSERT_OK(rows.status());
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ(
      rows->at(0).point.values,
      (std::map<std::string, double>{{"loss", 2}, {"rank.1.wait_ms", 1}, {"ranks.refused", 1}}));
}

}  // namespace
}  // namespace trainyard::testing
