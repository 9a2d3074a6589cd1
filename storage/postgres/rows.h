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

// `spec` and `plan_summary` are filled when the row has them.
JobRecord JobOf(const pqxx::row& row);

// What columns keep of a job's greatest number of slots. Of one that takes them in steps a server
// of before sees its least number alone, on which it may run whatever it knows of steps.
int StoredMaxSlots(const JobRecord& job);
int StoredMostSlots(const JobRecord& job);
// Rows ordered by (job, attempt, rank), one per rank.
std::vector<AttemptRecord> AttemptsOf(const pqxx::result& rows);
RankId RankIdOf(const pqxx::row& row);
Claim ClaimOf(const pqxx::row& row);
NodeRecord NodeOf(const pqxx::row& row);
std::vector<NodeRecord> AllNodesOf(const pqxx::result& rows);
NodeReport ReportOf(const pqxx::row& row);  // without `usage`
MetricRow MetricRowOf(const pqxx::row& row);
CheckpointRecord CheckpointOf(const pqxx::row& row);

std::string MapJson(const std::map<std::string, std::string>& map);
std::string MapJson(const std::map<std::string, double>& map);  // of finite values
std::string SlotsJson(const std::vector<SlotRecord>& slots);
std::string UsageJson(const std::vector<SlotUsage>& usage);
std::string HealthJson(const NodeReport& report);  // what has no column of its own

// A row of the table `feed`: one item, or several of one transaction, packed. Metrics lie
// elsewhere.
struct FeedRow {
  int64_t sequence = 0;  // sequence, time and attempt are of the last item
  absl::Time time;
  int64_t attempt = 0;
  std::string kind;
  std::string body;  // JSON
};

FeedRow FeedRowOf(const FeedRecord& item);
// The items that one transaction adds to the feed of one job, in as few rows as can hold them. The
// items have their sequences.
std::vector<FeedRow> FeedRowsOf(const std::vector<FeedRecord>& items);
// The items of a row, in order; a row of `metrics` is one item, too.
std::vector<FeedRecord> FeedItemsOf(const pqxx::row& row);

}  // namespace trainyard::postgres
