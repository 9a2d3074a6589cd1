#include "storage/records/feed.h"

#include <utility>

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

SharedItems NumberedItems(int64_t first_sequence, std::vector<FeedRecord> items) {
  if (items.empty()) return nullptr;
  for (FeedRecord& item : items) {
    item.sequence = first_sequence;
    first_sequence += SpanOf(item);
  }
  return std::make_shared<const std::vector<FeedRecord>>(std::move(items));
}

std::vector<FeedRecord> SingleItems(const std::vector<FeedRecord>& items) {
  std::vector<FeedRecord> single;
  for (const FeedRecord& item : items) {
    const auto* run = std::get_if<MetricRun>(&item.what);
    if (run == nullptr) {
      single.push_back(item);
      continue;
    }
    for (size_t i = 0; i < run->steps.size(); ++i) {
      single.push_back({.sequence = item.sequence + static_cast<int64_t>(i),
                        .time = run->times[i],
                        .attempt = item.attempt,
                        .what = PointOf(*run, i)});
    }
  }
  return single;
}

int64_t LastSequenceOf(const RankEventRecord& event) {
  const auto* run = std::get_if<MetricRun>(&event.what);
  if (run == nullptr) return event.sequence;
  return event.sequence + static_cast<int64_t>(run->steps.size()) - 1;
}

}  // namespace trainyard
