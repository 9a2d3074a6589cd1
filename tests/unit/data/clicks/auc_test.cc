#include "executor/data/clicks/auc.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace trainyard::data {
namespace {

double AucOf(std::vector<Scored> scored) { return Auc(scored).value_or(-1); }

TEST(Auc, IsTheShareOfPairsInOrder) {
  EXPECT_EQ(AucOf({{1, false}, {2, true}}), 1);
  EXPECT_EQ(AucOf({{2, false}, {1, true}}), 0);
  EXPECT_EQ(AucOf({{3, true}, {1, false}, {2, true}, {4, false}}), 0.5);
  EXPECT_EQ(AucOf({{1, true}, {2, false}, {3, true}, {0, false}}), 0.75);
}

TEST(Auc, CountsATieAsHalf) {
  EXPECT_EQ(AucOf({{1, false}, {1, true}}), 0.5);
  EXPECT_EQ(AucOf({{1, false}, {1, true}, {1, true}, {0, false}, {2, true}}), (4 + 2 * 0.5) / 6);
}

TEST(Auc, NeedsBothAClickAndNone) {
  EXPECT_EQ(AucOf({}), -1);
  EXPECT_EQ(AucOf({{1, true}, {2, true}}), -1);
  EXPECT_EQ(AucOf({{1, false}}), -1);
  EXPECT_EQ(AucOf({{1, false}, {NAN, true}}), -1);
}

TEST(Auc, AgreesWithCountingEveryPair) {
  std::mt19937 random(3);
  std::vector<Scored> scored(700);
  for (Scored& s : scored) {
    s = {.score = static_cast<float>(random() % 50), .click = random() % 3 == 0};
  }
  double won = 0, pairs = 0;
  for (const Scored& a : scored) {
    for (const Scored& b : scored) {
      if (!a.click || b.click) continue;
      won += a.score > b.score ? 1 : a.score == b.score ? 0.5 : 0;
      ++pairs;
    }
  }
  EXPECT_DOUBLE_EQ(AucOf(scored), won / pairs);
}

}  // namespace
}  // namespace trainyard::data
