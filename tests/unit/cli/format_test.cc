#include "clients/cli/format.h"

#include <cmath>

#include "clients/cli/table.h"
#include "clients/cli/terminal.h"
#include "gtest/gtest.h"

namespace trainyard::cli {
namespace {

TEST(Format, CountsHaveSeparators) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(123456), "123,456");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-1234), "-1,234");
  EXPECT_EQ(FormatCount(-123), "-123");
}

TEST(Format, BytesNeverShowAThousandOfAUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(FormatBytes(1536 << 10), "1.50 MiB");
  EXPECT_EQ(FormatBytes(int64_t{100} << 30), "100 GiB");
}

TEST(Format, ScaledNumbersKeepThreeDigits) {
  EXPECT_EQ(FormatScaled(12), "12 ");
  EXPECT_EQ(FormatScaled(1.5e9), "1.50 G");
  EXPECT_EQ(FormatScaled(999.9e6), "1.00 G");
  EXPECT_EQ(FormatScaled(123e12), "123 T");
}

TEST(Format, DurationsReadLikeAClock) {
  EXPECT_EQ(FormatClock(absl::Seconds(5)), "0:05");
  EXPECT_EQ(FormatClock(absl::Seconds(272)), "4:32");
  EXPECT_EQ(FormatClock(absl::Seconds(3723)), "1:02:03");
  EXPECT_EQ(FormatClock(absl::Hours(51) + absl::Minutes(4)), "2d 03:04");
  EXPECT_EQ(FormatClock(absl::Seconds(-3)), "0:00");
  EXPECT_EQ(FormatClock(absl::InfiniteDuration()), "?");
}

TEST(Format, AgesAreOneNumber) {
  EXPECT_EQ(FormatAge(absl::Seconds(5)), "5s");
  EXPECT_EQ(FormatAge(absl::Seconds(119)), "119s");
  EXPECT_EQ(FormatAge(absl::Minutes(3)), "3m");
  EXPECT_EQ(FormatAge(absl::Hours(30)), "30h");
  EXPECT_EQ(FormatAge(absl::Hours(100)), "4d");
}

TEST(Format, MetricsKeepFourSignificantDigits) {
  EXPECT_EQ(FormatMetric(0.41234), "0.4123");
  EXPECT_EQ(FormatMetric(12.3456), "12.346");
  EXPECT_EQ(FormatMetric(1234.5), "1234");
  EXPECT_EQ(FormatMetric(1.23e-5), "1.23e-05");
  EXPECT_EQ(FormatMetric(0), "0");
  EXPECT_EQ(FormatMetric(NAN), "nan");
  EXPECT_EQ(FormatMetric(-INFINITY), "-inf");
}

TEST(Terminal, WidthCountsCodePointsAndNoEscapes) {
  EXPECT_EQ(DisplayWidth("abc"), 3);
  EXPECT_EQ(DisplayWidth("é…━"), 3);
  EXPECT_EQ(DisplayWidth("\x1b[31mred\x1b[0m"), 3);
}

TEST(Terminal, ClipsAtColumnsAndEndsItsColours) {
  const Terminal ascii{.interactive = true};
  const Terminal full{.interactive = true, .color = true, .unicode = true};
  EXPECT_EQ(Clip(ascii, "abcdef", 6), "abcdef");
  EXPECT_EQ(Clip(ascii, "abcdefg", 6), "abc...");
  EXPECT_EQ(Clip(full, "éééé", 3), "éé…");
  EXPECT_EQ(Clip(full, "\x1b[31mabcdef\x1b[0m", 4), "\x1b[31mabc…\x1b[0m");
}

TEST(Terminal, PaintsOnlyWhereThereAreColours) {
  EXPECT_EQ(Paint({.color = true}, Color::kRed, "x"), "\x1b[31mx\x1b[0m");
  EXPECT_EQ(Paint({.color = false}, Color::kRed, "x"), "x");
}

TEST(Table, AlignsColumnsWhateverTheirColours) {
  const Terminal terminal{.color = true};
  Table table({"NAME", "N"});
  table.AlignRight(1);
  table.Add({Paint(terminal, Color::kGreen, "é"), "5"});
  table.Add({"longer", "10"});
  EXPECT_EQ(table.Render({}),
            "NAME     N\n"
            "\x1b[32mé\x1b[0m        5\n"
            "longer  10\n");
}

TEST(Table, CutsLinesOnATerminalAndNowhereElse) {
  Table table({"A", "B"});
  table.Add({"1", "a long reason"});
  EXPECT_EQ(table.Render({.interactive = true, .width = 10}), "A  B\n1  a lo...\n");
  EXPECT_EQ(table.Render({.interactive = false, .width = 10}), "A  B\n1  a long reason\n");
}

}  // namespace
}  // namespace trainyard::cli
