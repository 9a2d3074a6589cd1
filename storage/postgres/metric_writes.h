#pragma once

// Metrics on their way into heads and chunks (migrations/0010_metric_chunks.sql). Inside a
// transaction that holds the lock of the job's row; throws what libpqxx throws.

#include <map>
#include <string>

#include "absl/status/status.h"
#include "storage/postgres/database.h"
#include "storage/records/metric_block.h"

namespace trainyard::postgres {

// A job's heads become a chunk once they hold so many points.
inline constexpr int kChunkPoints = 1024;
// So many chunks of a level become one of the next.
inline constexpr int kFanIn = 10;

// Stores the points that jobs, by uid, reported: as a head, or, with the heads that are there, as
// chunks. Every thousandth point of a job pays for the chunk that it completes, so nothing runs
// behind and nothing piles up. kDataLoss: what is stored is damaged.
absl::Status WriteMetrics(Transaction& transaction,
                          const std::map<std::string, MetricBlock>& points);

// Makes a chunk of what is in heads, if it is worth one: of a job that has ended.
absl::Status CompactHeads(Transaction& transaction, const std::string& uid);

}  // namespace trainyard::postgres
