#include "clients/cli/gang_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const absl::Time kNow = absl::FromUnixSeconds(1000);

// Ranks on nodes of `per_node` slots.
v1::Gang GangOf(int ranks, int per_node) {
  v1::Gang gang;
  for (int r = 0; r < ranks; ++r) {
    v1::Gang::Rank& rank = *gang.add_ranks();
    rank.set_rank(r);
    rank.set_node(absl::StrCat("nodes/n", r / per_node));
    rank.add_slots(r % per_node);
    rank.set_state(v1::Gang::Rank::RUNNING);
    rank.set_step(1200);
    rank.mutable_last_heard_time()->set_seconds(998);
  }
  return gang;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  return lines;
}

TEST(RenderGang, OneRankIsOneLine) {
  EXPECT_EQ(RenderGang({}, GangOf(1, 8), false, kNow),
            "NODE  RANKS  SLOTS  STATE     STEP  HEARD\n"
            "n0    0      0      RUNNING  1,200  2s ago\n");
}

TEST(RenderGang, RanksAreGroupedByNodeAndState) {
  v1::Gang gang = GangOf(8, 4);
  gang.mutable_ranks(6)->set_state(v1::Gang::Rank::GONE);
  gang.mutable_ranks(6)->set_outcome("FAILED");
  gang.mutable_ranks(6)->set_failure("loss is \x1b[2Jnan\nand more");
  gang.mutable_ranks(6)->clear_step();
  const std::string text = RenderGang({}, gang, false, kNow);
  EXPECT_THAT(Lines(text), SizeIs(5));
  EXPECT_THAT(text, HasSubstr("n0    0-3    0-3    RUNNING  1,200  2s ago"));
  EXPECT_THAT(text, HasSubstr("n1    4-5    0-1    RUNNING"));
  EXPECT_THAT(text, HasSubstr("n1    6      2      FAILED       -  2s ago  loss is \\x1b[2Jnan"));
  EXPECT_THAT(Lines(RenderGang({}, gang, true, kNow)), SizeIs(9)) << "a line for each";
}

TEST(RenderGang, ManyRanksStayReadable) {
  EXPECT_THAT(Lines(RenderGang({}, GangOf(256, 8), false, kNow)), SizeIs(33));
}

v1::MetricPoint PointOf(const std::map<std::string, double>& values) {
  v1::MetricPoint point;
  point.set_step(1200);
  for (const auto& [name, value] : values) (*point.mutable_values())[name] = value;
  return point;
}

TEST(RenderRanks, FewRanksAreShownOneByOne) {
  const v1::MetricPoint point = PointOf({{"ranks.count", 2},
                                         {"rank.0.compute_ms", 10},
                                         {"rank.0.wait_ms", 30.25},
                                         {"rank.0.memory_bytes", 1 << 30},
                                         {"rank.1.compute_ms", 38},
                                         {"rank.1.wait_ms", 2},
                                         {"ranks.planned_bytes.max", 1 << 20},
                                         {"ranks.slowest", 1},
                                         {"ranks.slowest_ratio", 3.8}});
  EXPECT_TRUE(HasRanks(point));
  EXPECT_EQ(RenderRanks({}, point, {{0, "a"}, {1, "b"}}),
            "step 1,200, 2 ranks\n"
            "RANK  NODE  STEP MS  COMPUTES  WAITS    MEMORY\n"
            "   0  a        40.2      10.0   30.2  1.00 GiB\n"
            "   1  b        40.0      38.0    2.0\n"
            "planned memory: up to 1.00 MiB per rank\n"
            "slowest: rank 1 on b, 3.80 times the median for as much work\n");
}

TEST(RenderRanks, OfManyRanksTheExtremesAreNamed) {
  const v1::MetricPoint point = PointOf({{"ranks.count", 1024},
                                         {"ranks.compute_ms.min", 9},
                                         {"ranks.compute_ms.median", 10},
                                         {"ranks.compute_ms.max", 40},
                                         {"ranks.compute_ms.max_rank", 777},
                                         {"ranks.slowest", 777},
                                         {"ranks.slowest_ratio", 4},
                                         {"ranks.refused", 3}});
  const std::string text = RenderRanks({}, point, {{777, "n97"}});
  EXPECT_THAT(text, HasSubstr("777 on n97"));
  EXPECT_THAT(text, HasSubstr("slowest: rank 777 on n97, 4.00 times the median"));
  EXPECT_THAT(text, HasSubstr("3 of its values made no sense and were refused"));
  EXPECT_LT(Lines(text).size(), 10u);
  EXPECT_THAT(RanksLine(point), HasSubstr("slowest rank 777 (4.00 x median)"));
}

TEST(RenderRanks, NonsenseFromAServerHarmsNobody) {
  const v1::MetricPoint point = PointOf({{"ranks.count", 1e300}, {"ranks.slowest", -7}});
  EXPECT_FALSE(HasRanks(point));
  EXPECT_FALSE(HasRanks(PointOf({{"loss", 1}})));
  EXPECT_THAT(RenderRanks({}, PointOf({{"ranks.count", 1}, {"rank.0.memory_bytes", 1e30}}), {}),
              Not(HasSubstr("GiB")));
}

}  // namespace
}  // namespace trainyard::cli
