#pragma once

// Rows of metric_heads and metric_chunks on their way out of a statement.

#include <pqxx/pqxx>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/records/metric_block.h"

namespace trainyard::postgres {

inline constexpr int kIndexSplit = -1;  // of the row that holds a chunk's index

int SplitNumber(MetricSplit split);
MetricSplit SplitOfRow(const pqxx::row& row);
std::string BytesOf(const pqxx::field& field);

// The columns of every row of a chunk that describe the whole chunk.
struct ChunkSpan {
  int64_t attempt = 0;
  int64_t first_sequence = 0;
  int64_t last_sequence = 0;
  int64_t first_step = 0;
  int64_t last_step = 0;
};
ChunkSpan SpanOfRow(const pqxx::row& row);

struct Chunk {
  ChunkSpan span;
  MetricBlock block;  // with those columns whose rows were read
};
// Rows ordered by chunk, and the index first in each. kDataLoss: what is stored is damaged.
absl::StatusOr<std::vector<Chunk>> ChunksOf(const pqxx::result& rows);

}  // namespace trainyard::postgres
