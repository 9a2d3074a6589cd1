#include "storage/postgres/metric_rows.h"

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::postgres {

int SplitNumber(MetricSplit split) { return split == MetricSplit::kTrain ? 0 : 1; }

MetricSplit SplitOfRow(const pqxx::row& row) {
  return row["split"].as<int>() == 0 ? MetricSplit::kTrain : MetricSplit::kValidation;
}

std::string BytesOf(const pqxx::field& field) { return pqxx::binarystring(field).str(); }

ChunkSpan SpanOfRow(const pqxx::row& row) {
  return {.attempt = row["attempt"].as<int64_t>(),
          .first_sequence = row["first_sequence"].as<int64_t>(),
          .last_sequence = row["last_sequence"].as<int64_t>(),
          .first_step = row["first_step"].as<int64_t>(),
          .last_step = row["last_step"].as<int64_t>()};
}

absl::StatusOr<std::vector<Chunk>> ChunksOf(const pqxx::result& rows) {
  std::vector<Chunk> chunks;
  for (const pqxx::row& row : rows) {
    const std::string bytes = BytesOf(row["bytes"]);
    if (row["split"].as<int>() == kIndexSplit) {
      TY_ASSIGN_OR_RETURN(MetricBlock block, DecodeIndex(bytes, row["points"].as<size_t>()));
      chunks.push_back({.span = SpanOfRow(row), .block = std::move(block)});
      continue;
    }
    if (chunks.empty()) return absl::DataLossError("a chunk of metrics has no index");
    TY_RETURN_IF_ERROR(
        DecodeColumn(bytes, {SplitOfRow(row), row["name"].as<std::string>()}, chunks.back().block));
  }
  return chunks;
}

}  // namespace trainyard::postgres
