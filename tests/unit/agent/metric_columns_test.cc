// Metrics on their way to the server: points that follow each other become columns, and nothing
// else changes.

#include "executor/agent/metric_columns.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

v1::RankEvent Point(int64_t sequence, int64_t step, const std::map<std::string, double>& values,
                    v1::MetricPoint::Split split = v1::MetricPoint::TRAIN) {
  v1::RankEvent event;
  event.set_sequence(sequence);
  event.set_time_us(1000 * sequence);
  event.mutable_metrics()->set_step(step);
  event.mutable_metrics()->set_split(split);
  for (const auto& [name, value] : values)
    (*event.mutable_metrics()->mutable_values())[name] = value;
  return event;
}

v1::RankEvent Notice(int64_t sequence) {
  v1::RankEvent event;
  event.set_sequence(sequence);
  event.mutable_notice()->set_message("hello");
  return event;
}

v1::EventBatch BatchOf(const std::vector<v1::RankEvent>& events) {
  v1::EventBatch batch;
  batch.mutable_key()->set_job_uid("job");
  for (const v1::RankEvent& event : events) *batch.add_events() = event;
  return batch;
}

TEST(MetricColumnsTest, PointsThatFollowEachOtherBecomeColumns) {
  const v1::EventBatch packed = PackMetrics(
      BatchOf({Point(5, 11, {{"loss", 1.5}, {"a", 2}}), Point(6, 12, {{"a", 3}, {"loss", 2.5}}),
               Point(7, 13, {{"loss", 3.5}, {"a", 4}})}));
  EXPECT_EQ(packed.key().job_uid(), "job");
  ASSERT_EQ(packed.events_size(), 1);
  const v1::RankEvent& event = packed.events(0);
  EXPECT_EQ(event.sequence(), 5);
  const v1::MetricColumns& columns = event.columns();
  EXPECT_EQ(columns.split(), v1::MetricPoint::TRAIN);
  EXPECT_EQ(std::vector<int64_t>(columns.steps().begin(), columns.steps().end()),
            (std::vector<int64_t>{11, 12, 13}));
  EXPECT_EQ(std::vector<int64_t>(columns.time_deltas_us().begin(), columns.time_deltas_us().end()),
            (std::vector<int64_t>{5000, 1000, 1000}));
  ASSERT_EQ(columns.columns_size(), 2);
  EXPECT_EQ(columns.columns(0).name(), "a");
  EXPECT_EQ(columns.columns(1).name(), "loss");
  EXPECT_EQ(columns.columns(1).values(2), 3.5);
}

TEST(MetricColumnsTest, AnotherSplitOtherNamesOrAnythingBetweenBeginsNewColumns) {
  const v1::EventBatch packed = PackMetrics(BatchOf(
      {Point(1, 1, {{"loss", 1}}), Point(2, 1, {{"loss", 1}}, v1::MetricPoint::VALIDATION),
       Point(3, 2, {{"loss", 1}}), Point(4, 3, {{"loss", 1}, {"scale", 2}}),
       Point(5, 4, {{"rate", 1}, {"scale", 2}}), Notice(6),
       Point(7, 5, {{"rate", 1}, {"scale", 2}}), Point(8, 6, {{"rate", 1}, {"scale", 2}})}));
  ASSERT_EQ(packed.events_size(), 7);
  EXPECT_TRUE(packed.events(5).has_notice());
  EXPECT_EQ(packed.events(6).sequence(), 7);
  EXPECT_EQ(packed.events(6).columns().steps_size(), 2);
}

TEST(MetricColumnsTest, APointWithoutValuesStaysWhatItIs) {
  const v1::EventBatch packed = PackMetrics(BatchOf({Point(1, 1, {})}));
  ASSERT_EQ(packed.events_size(), 1);
  EXPECT_TRUE(packed.events(0).has_metrics());
}

}  // namespace
}  // namespace trainyard
