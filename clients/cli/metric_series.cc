#include "clients/cli/metric_series.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "storage/base/printable.h"

namespace trainyard::cli {
namespace {

// The order in which people look at values; others follow by name.
int Place(const std::string& name) {
  const char* const kOrder[] = {"loss",       "accuracy",      "auc",           "best_auc",
                                "perplexity", "bits_per_byte", "learning_rate", "grad_norm"};
  const auto* const found = std::find(std::begin(kOrder), std::end(kOrder), name);
  return static_cast<int>(found - std::begin(kOrder));
}

std::string Exact(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, end.ptr);
}

}  // namespace

void MetricSeries::Add(const v1::MetricPoint& point) {
  points_[{point.step(), point.split()}] = point;
}

void MetricSeries::DropPointsAfter(int64_t step) {
  points_.erase(points_.lower_bound({step + 1, 0}), points_.end());
}

std::vector<std::string> MetricSeries::Names() const {
  std::set<std::string> names;
  for (const auto& [key, point] : points_) {
    for (const auto& [name, value] : point.values()) names.insert(name);
  }
  std::vector<std::string> sorted(names.begin(), names.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const std::string& a, const std::string& b) { return Place(a) < Place(b); });
  return sorted;
}

std::vector<Series> MetricSeries::Curves(const std::string& name) const {
  std::vector<Series> curves = {{"train " + name, {}}, {"validation " + name, {}}};
  for (const auto& [key, point] : points_) {
    const auto found = point.values().find(name);
    if (found == point.values().end()) continue;
    curves[point.split() == v1::MetricPoint::VALIDATION ? 1 : 0].points.emplace_back(
        static_cast<double>(point.step()), found->second);
  }
  return curves;
}

std::string SplitName(v1::MetricPoint::Split split) {
  return split == v1::MetricPoint::VALIDATION ? "validation" : "train";
}

std::string CsvHeader(const std::vector<std::string>& names) {
  std::string out = "step,split";
  for (const std::string& name : names) absl::StrAppend(&out, ",", EscapedLine(name));
  return out + "\n";
}

std::string CsvLine(const v1::MetricPoint& point, const std::vector<std::string>& names) {
  std::string out = absl::StrCat(point.step(), ",", SplitName(point.split()));
  for (const std::string& name : names) {
    const auto found = point.values().find(name);
    absl::StrAppend(&out, ",", found == point.values().end() ? "" : Exact(found->second));
  }
  return out + "\n";
}

std::string CsvFile(const std::vector<v1::AttemptMetricPoint>& points) {
  MetricSeries series;
  for (const v1::AttemptMetricPoint& point : points) series.Add(point.point());
  const std::vector<std::string> names = series.Names();
  std::string text = CsvHeader(names);
  for (const v1::AttemptMetricPoint& point : points) text += CsvLine(point.point(), names);
  return text;
}

}  // namespace trainyard::cli
