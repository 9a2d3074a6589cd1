#pragma once

// Reads metrics from heads, chunks and the rows that older servers wrote (table `metrics`). Inside
// a transaction; throws what libpqxx throws. Functions with several statements need
// Access::kSnapshot or the job's lock, because points move from heads to chunks. kDataLoss: what is
// stored is damaged.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/job_store.h"
#include "storage/postgres/database.h"

namespace trainyard::postgres {

// Points of the current series of a job.
using SeriesPoints = std::set<std::pair<int64_t, MetricSplit>>;

// A range of steps of a job, both ends included; empty at first.
struct StepRange {
  std::string job_uid;
  int64_t from = INT64_MAX;
  int64_t to = 0;

  // Extends the range to the steps of the points that `event` reports, if it reports any.
  void Add(const RankEventRecord& event);
};

// For each range the points of its job's current series within it.
absl::StatusOr<std::vector<SeriesPoints>> ReadSeries(Transaction& transaction,
                                                     const std::vector<StepRange>& ranges);

// As JobStore's methods, without asking whether the job exists.
absl::StatusOr<std::vector<std::vector<FeedRecord>>> ReadFeedItems(
    Transaction& transaction, const std::vector<FeedPosition>& positions, int limit);
absl::StatusOr<std::vector<MetricRow>> ReadPoints(Transaction& transaction, const std::string& uid,
                                                  const JobStore::MetricQuery& query);
absl::StatusOr<std::vector<MetricBucket>> ReadBuckets(Transaction& transaction,
                                                      const std::string& uid,
                                                      const MetricBucketQuery& query);

}  // namespace trainyard::postgres
