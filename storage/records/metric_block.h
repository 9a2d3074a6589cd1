#pragma once

// Metric points of one attempt in columns, and their encoding as bytes. Pure. Decoding damaged
// bytes returns kDataLoss.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/records/feed.h"

namespace trainyard {

// No block holds more points than this.
inline constexpr size_t kMostBlockPoints = size_t{1} << 16;

// Points in the order of their sequences in the job's feed. The sequences may have gaps, where the
// feed has items of other kinds.
struct MetricBlock {
  struct Column {
    std::vector<uint32_t> at;  // indices of the points that have the name, ascending
    std::vector<double> values;
  };
  using Key = std::pair<MetricSplit, std::string>;

  int64_t attempt = 0;
  std::vector<int64_t> sequences;
  std::vector<int64_t> times_us;
  std::vector<int64_t> steps;
  std::vector<MetricSplit> splits;
  std::map<Key, Column> columns;  // a column has points of its split only

  size_t size() const { return steps.size(); }
  int64_t first_step() const;  // the lowest; the block must not be empty
  int64_t last_step() const;

  // Append points. `sequence` is that of the (first) point.
  void Add(int64_t sequence, absl::Time time, const MetricRecord& point);
  void Add(int64_t sequence, const MetricRun& run);
  void Add(const MetricBlock& later);
};

// The index is all of a block but its columns, each of which is encoded separately. DecodeColumn
// adds a column to a block that DecodeIndex returned.
std::string EncodeIndex(const MetricBlock& block);
absl::StatusOr<MetricBlock> DecodeIndex(absl::string_view bytes, size_t points);
std::string EncodeColumn(const MetricBlock& block, const MetricBlock::Key& key);
absl::Status DecodeColumn(absl::string_view bytes, const MetricBlock::Key& key, MetricBlock& block);

// A block as one string.
std::string EncodeBlock(const MetricBlock& block);
absl::StatusOr<MetricBlock> DecodeBlock(absl::string_view bytes);

// At most `count` points of the block, from index `from` on, as a block.
MetricBlock SliceBlock(const MetricBlock& block, size_t from, size_t count);

// Its points one by one, in order; `superseded` is not set.
std::vector<MetricRow> RowsOf(const MetricBlock& block);

}  // namespace trainyard
