#include "executor/plan/spec/glob.h"

#include <gtest/gtest.h>

#include <string>

namespace trainyard::plan {
namespace {

TEST(Glob, MatchesWholeNames) {
  const struct {
    const char *pattern, *name;
    bool matches;
  } cases[] = {
      {"a", "a", true},          {"a", "ab", false},
      {"a", "ba", false},        {"", "", true},
      {"", "a", false},          {"*", "", true},
      {"*", "a.b.c", true},      {"*.bias", "a.b.bias", true},
      {"*.bias", "bias", false}, {"*.bias", "a.biased", false},
      {"a*", "abc", true},       {"a*c", "abcbc", true},
      {"a*c", "abcb", false},    {"a?c", "abc", true},
      {"a?c", "ac", false},      {"?", "", false},
      {"**", "ab", true},        {"*a*b*", "xaybz", true},
      {"*a*b*", "xbya", false},  {"h.1.*", "h.10.w", false},
      {"h.1.*", "h.1.w", true},  {"[ab]", "a", false},
      {"[ab]", "[ab]", true},    {"A", "a", false},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(GlobMatches(c.pattern, c.name), c.matches) << c.pattern << " " << c.name;
    EXPECT_EQ(GlobDistance(c.pattern, c.name) == 0, c.matches) << c.pattern << " " << c.name;
  }
}

TEST(Glob, HostilePatternsTakeNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "a*";
  EXPECT_FALSE(GlobMatches(pattern + "b", std::string(2000, 'a')));
}

TEST(Glob, DistanceCountsWhatAStarDoesNotTake) {
  EXPECT_EQ(GlobDistance("*.weigth", "layers.0.weight"), 2);
  EXPECT_EQ(GlobDistance("h.?.bias", "h.12.bias"), 1);
  EXPECT_EQ(GlobDistance("abc", ""), 3);
  EXPECT_EQ(GlobDistance("", "abc"), 3);
  EXPECT_EQ(GlobDistance("*x", "abc"), 1);
}

}  // namespace
}  // namespace trainyard::plan
