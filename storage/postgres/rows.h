#pragma once

// Rows on their way out of a statement, and records as JSON. Names of columns are those of sql/.

#include <map>
#include <pqxx/pqxx>
#include <string>
#include <vector>

#include "storage/records/attempt.h"
#include "storage/records/feed.h"
#include "storage/records/job.h"
#include "storage/records/node.h"

namespace trainyard::postgres {

std::string BytesOf(const pqxx::row& row, const char* column);
// `spec` and `plan_summary` are filled when the row has them.
JobRecord JobOf(const pqxx::row& row);
// Rows ordered by (job, attempt, rank), one per rank.
std::vector<AttemptRecord> AttemptsOf(const pqxx::result& rows);
NodeRecord NodeOf(const pqxx::row& row);
NodeReport ReportOf(const pqxx::row& row);  // but for what its GPUs do
FeedRecord FeedItemOf(const pqxx::row& row);
MetricRow MetricRowOf(const pqxx::row& row);
CheckpointRecord CheckpointOf(const pqxx::row& row);

std::optional<std::string> FailureJson(const std::optional<FailureRecord>& failure);
std::string MapJson(const std::map<std::string, std::string>& map);
std::string MapJson(const std::map<std::string, double>& map);  // of finite values
std::string SlotsJson(const std::vector<SlotRecord>& slots);
std::string UsageJson(const std::vector<SlotUsage>& usage);
std::string HealthJson(const NodeReport& report);  // what has no column of its own

// Kind and body of a feed item that is not a metric.
struct FeedBody {
  std::string kind;
  std::string json;
};
FeedBody FeedBodyOf(const FeedRecord& item);

}  // namespace trainyard::postgres
