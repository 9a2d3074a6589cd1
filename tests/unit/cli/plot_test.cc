#include "clients/cli/plot.h"

#include <cmath>

#include "absl/strings/str_split.h"
#include "clients/cli/metric_series.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;

TEST(Plot, RisesFromLowerLeftToUpperRight) {
  const Series line = {"loss", {{0, 0}, {1, 1}, {2, 2}, {3, 3}}};
  const std::vector<std::string> rows =
      absl::StrSplit(RenderPlot({}, {line}, 40, 10), '\n', absl::SkipEmpty());
  ASSERT_EQ(rows.size(), 10u);  // seven rows of the plot, the axis, its numbers, the legend
  const auto first_mark = [](const std::string& row) { return row.find('.', row.find('|') + 1); };
  EXPECT_THAT(rows[0], HasSubstr("3.0000 |"));
  EXPECT_THAT(rows[6], HasSubstr("       0 |."));
  for (int row = 1; row < 7; ++row) EXPECT_LT(first_mark(rows[row]), first_mark(rows[row - 1]));
  EXPECT_THAT(rows[9], HasSubstr(". loss 3.0000"));
}

TEST(Plot, FitsTheWidth) {
  Series line = {"loss", {}};
  for (int i = 0; i < 5000; ++i) line.points.emplace_back(i, std::sin(i / 500.0));
  for (const int width : {30, 80, 120}) {
    const std::string text = RenderPlot({.unicode = true, .width = width}, {line}, width, 20);
    for (const absl::string_view row : absl::StrSplit(text, '\n')) {
      EXPECT_LE(DisplayWidth(row), width) << text;
    }
  }
}

TEST(Plot, ShowsTheTailOfALossThatFellFar) {
  Series line = {"loss", {}};
  for (int i = 0; i <= 100; ++i) line.points.emplace_back(i, std::exp(-i / 20.0));
  const std::string text = RenderPlot({}, {line}, 60, 12);
  EXPECT_THAT(text, HasSubstr("(logarithmic)"));
  EXPECT_THAT(text, HasSubstr("0.0821 |"));  // the geometric middle of 1 and e^-5
}

TEST(Plot, TellsCurvesApartWithoutColours) {
  const Series train = {"train", {{0, 1}, {1, 1}}};
  const Series validation = {"validation", {{0, 2}, {1, 2}}};
  EXPECT_THAT(RenderPlot({.unicode = true}, {train, validation}, 40, 10),
              HasSubstr("● validation"));
}

TEST(Plot, LeavesOutWhatIsNotFinite) {
  const Series line = {"loss", {{0, 1}, {1, NAN}, {2, INFINITY}, {3, 2}}};
  const std::string text = RenderPlot({}, {line}, 40, 8);
  EXPECT_THAT(text, HasSubstr("2.0000 |"));
  EXPECT_THAT(text, HasSubstr("1.0000 |"));
}

TEST(Plot, SaysSoWhenThereIsNothing) {
  EXPECT_EQ(RenderPlot({}, {}, 80, 20), "nothing to plot yet\n");
  EXPECT_EQ(RenderPlot({}, {{"loss", {{1, NAN}}}}, 80, 20), "nothing to plot yet\n");
}

TEST(Plot, DrawsOnePoint) {
  EXPECT_THAT(RenderPlot({}, {{"loss", {{1, 5}}}}, 40, 8), HasSubstr("5.0000 |"));
}

v1::MetricPoint Point(int64_t step, v1::MetricPoint::Split split, double loss) {
  v1::MetricPoint point;
  point.set_step(step);
  point.set_split(split);
  (*point.mutable_values())["loss"] = loss;
  return point;
}

TEST(MetricSeries, ANewAttemptSupersedesLaterSteps) {
  MetricSeries series;
  for (int step = 1; step <= 5; ++step) series.Add(Point(step, v1::MetricPoint::TRAIN, step));
  series.Add(Point(4, v1::MetricPoint::VALIDATION, 9));
  series.DropPointsAfter(3);
  series.Add(Point(4, v1::MetricPoint::TRAIN, 40));
  const std::vector<Series> curves = series.Curves("loss");
  EXPECT_EQ(curves[0].points,
            (std::vector<std::pair<double, double>>{{1, 1}, {2, 2}, {3, 3}, {4, 40}}));
  EXPECT_TRUE(curves[1].points.empty());
}

TEST(MetricSeries, CsvReadsBackExactly) {
  v1::MetricPoint point = Point(3, v1::MetricPoint::TRAIN, 0.1 + 0.2);
  (*point.mutable_values())["zeta"] = 1;
  MetricSeries series;
  series.Add(point);
  const std::vector<std::string> names = series.Names();
  EXPECT_EQ(names, (std::vector<std::string>{"loss", "zeta"}));
  EXPECT_EQ(CsvHeader(names), "step,split,loss,zeta\n");
  EXPECT_EQ(CsvLine(point, names), "3,train,0.30000000000000004,1\n");
  EXPECT_EQ(CsvLine(Point(4, v1::MetricPoint::VALIDATION, NAN), names), "4,validation,nan,\n");
}

}  // namespace
}  // namespace trainyard::cli
