#include "storage/records/feed.h"

namespace trainyard {

MetricRun SliceRun(const MetricRun& run, size_t from, size_t count) {
  const auto cut = [from, count](const auto& items) {
    const auto begin = items.begin() + static_cast<std::ptrdiff_t>(from);
    return std::decay_t<decltype(items)>(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  MetricRun slice{
      .split = run.split, .steps = cut(run.steps), .times = cut(run.times), .names = run.names};
  for (const std::vector<double>& values : run.values) slice.values.push_back(cut(values));
  return slice;
}

MetricRecord PointOf(const MetricRun& run, size_t at) {
  MetricRecord point{.step = run.steps[at], .split = run.split};
  for (size_t i = 0; i < run.names.size(); ++i) point.values[run.names[i]] = run.values[i][at];
  return point;
}

int64_t SpanOf(const FeedRecord& item) {
  const auto* run = std::get_if<MetricRun>(&item.what);
  return run == nullptr ? 1 : static_cast<int64_t>(run->steps.size());
}

int64_t LastSequenceOf(const RankEventRecord& event) {
  const auto* run = std::get_if<MetricRun>(&event.what);
  if (run == nullptr) return event.sequence;
  return event.sequence + static_cast<int64_t>(run->steps.size()) - 1;
}

}  // namespace trainyard
