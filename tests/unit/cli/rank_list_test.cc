#include "clients/cli/rank_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RankList, TakesARankRanksOrAll) {
  EXPECT_THAT(ParseRankList("3")->ranks, ElementsAre(3));
  EXPECT_THAT(ParseRankList("6,0,4-6")->ranks, ElementsAre(0, 4, 5, 6));
  EXPECT_TRUE(ParseRankList("all")->all);
  EXPECT_THAT(*RanksOf({.all = true}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*RanksOf({.ranks = {0, 2}}, 3), ElementsAre(0, 2));
}

TEST(RankList, SaysWhatIsWrong) {
  for (const char* text :
       {"", "x", "-1", "1-", "3-1", "0,,1", "1,x", "0-99999999999", "0-65536", "1-2-3", "all,1"}) {
    EXPECT_THAT(std::string(ParseRankList(text).status().message()),
                HasSubstr("expected a rank, ranks as in 0,4-7, or all"))
        << text;
  }
  EXPECT_THAT(std::string(RanksOf({.ranks = {1, 3}}, 3).status().message()),
              HasSubstr("--rank: found 3, and the attempt has 3 ranks, 0 to 2"));
}

TEST(RankLines, PutTheRankInFrontOfEachLine) {
  RankLines lines(3);
  EXPECT_EQ(lines.Add("a\nb"), "[3] a\n");
  EXPECT_EQ(lines.Add("c"), "");
  EXPECT_EQ(lines.Add("d\n\ne"), "[3] bcd\n[3] \n");
  EXPECT_EQ(lines.Rest(), "[3] e\n");
  EXPECT_EQ(lines.Rest(), "");
}

TEST(RankLines, ALineWithoutEndIsCut) {
  RankLines lines(0);
  std::string printed;
  for (int i = 0; i < 100; ++i) printed += lines.Add(std::string(10000, 'x'));
  EXPECT_GT(printed.size(), 900000u) << "it is not kept for ever";
}

}  // namespace
}  // namespace trainyard::cli
