#include "clients/cli/option_checks.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;

TEST(OptionChecks, SpansAreSecondsOrUnits) {
  const CLI::Validator seconds = Seconds();
  for (const auto& [text, value] : {std::pair<std::string, std::string>{"1200", "1200"},
                                    {"0", "0"},
                                    {"0.5", "0.5"},
                                    {"90s", "90"},
                                    {"1h30m", "5400"}}) {
    std::string found = text;
    EXPECT_EQ(seconds(found), "") << text;
    EXPECT_EQ(found, value);
  }
  for (const char* text : {"", "-1", "soon", "nan", "inf", "5 parsecs", "-3s"}) {
    std::string found = text;
    EXPECT_THAT(seconds(found), HasSubstr("expected seconds")) << text;
    EXPECT_EQ(found, text);
  }
}

TEST(OptionChecks, WholeNumbersHaveALeast) {
  const CLI::Validator at_least = AtLeast(1);
  std::string text = "1";
  EXPECT_EQ(at_least(text), "");
  for (const char* bad : {"0", "-4", "1.5", "many", "99999999999999999999"}) {
    text = bad;
    EXPECT_THAT(at_least(text), HasSubstr("at least 1, found")) << bad;
  }
}

TEST(OptionChecks, RatesAreNumbersInThousands) {
  const CLI::Validator rate = Rate();
  const auto checked = [&](std::string text) {
    const std::string wrong = rate(text);
    return wrong.empty() ? text : wrong;
  };
  EXPECT_EQ(checked("1.5e9"), "1500000000");
  EXPECT_EQ(checked("40T"), "40000000000000");
  EXPECT_EQ(checked("12.5G"), "12500000000");
  for (const char* text : {"0", "-1G", "G", "", "fast", "1e308P", "nan", "1GB"}) {
    EXPECT_THAT(checked(text), ::testing::HasSubstr("expected a number above 0")) << text;
  }
}

}  // namespace
}  // namespace trainyard::cli
