#pragma once

// Metrics out of heads, chunks and the rows of before (table `metrics`). Inside a transaction;
// throws what libpqxx throws. Those that take several statements want Access::kSnapshot or the
// job's lock: points move from heads to chunks. kDataLoss: what is stored is damaged.

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

// The steps of a job's points that somebody asks for, both ends included; at first none.
struct StepRange {
  std::string job_uid;
  int64_t from = INT64_MAX;
  int64_t to = 0;

  // Adds the steps of the points that an event reports, if it does.
  void Add(const RankEventRecord& event);
};

// Of each job the points of its current series within its steps.
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
