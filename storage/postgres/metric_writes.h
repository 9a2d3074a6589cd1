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
// So many chunks of a level become one of the next level.
inline constexpr int kFanIn = 10;

// Stores points that were just reported, by uid of their job: as a head, or, if the heads would
// then hold kChunkPoints, together with the heads as chunks. The report that completes a chunk
// writes it, so there is no background work that could fall behind. kDataLoss: what is stored is
// damaged.
absl::Status WriteMetrics(Transaction& transaction,
                          const std::map<std::string, MetricBlock>& points);

// Turns the heads of a job that has ended into a chunk, if they hold enough points.
absl::Status CompactHeads(Transaction& transaction, const std::string& uid);

}  // namespace trainyard::postgres
