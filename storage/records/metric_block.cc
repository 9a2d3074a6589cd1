#include "storage/records/metric_block.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/records/metric_codec.h"

namespace trainyard {
namespace {

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("a block of metrics is damaged: ", what));
}

// The indices of the points of one split.
std::vector<uint32_t> PointsOf(const MetricBlock& block, MetricSplit split) {
  std::vector<uint32_t> points;
  for (size_t i = 0; i < block.size(); ++i) {
    if (block.splits[i] == split) points.push_back(static_cast<uint32_t>(i));
  }
  return points;
}

int64_t NumberOf(MetricSplit split) { return split == MetricSplit::kTrain ? 0 : 1; }

absl::StatusOr<MetricSplit> SplitOf(uint64_t number) {
  if (number > 1) return Damaged("a split");
  return number == 0 ? MetricSplit::kTrain : MetricSplit::kValidation;
}

// The indices of the points that have a value in the column; empty `places` stand for all points of
// the split.
absl::StatusOr<std::vector<uint32_t>> DecodePlaces(const MetricBlock& block, MetricSplit split,
                                                   size_t count, absl::string_view places) {
  if (places.empty()) {
    std::vector<uint32_t> all = PointsOf(block, split);
    if (all.size() != count) return Damaged("the number of a column's values");
    return all;
  }
  if (count > block.size()) return Damaged("the number of a column's values");
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> integers, DecodeIntegers(places, count));
  std::vector<uint32_t> at;
  at.reserve(count);
  for (const int64_t place : integers) {
    const int64_t least = at.empty() ? 0 : int64_t{at.back()} + 1;
    if (place < least || place >= static_cast<int64_t>(block.size()) ||
        block.splits[static_cast<size_t>(place)] != split) {
      return Damaged("a column has a value where its split has no point");
    }
    at.push_back(static_cast<uint32_t>(place));
  }
  return at;
}

}  // namespace

int64_t MetricBlock::first_step() const { return *std::min_element(steps.begin(), steps.end()); }
int64_t MetricBlock::last_step() const { return *std::max_element(steps.begin(), steps.end()); }

void MetricBlock::Add(int64_t sequence, absl::Time time, const MetricRecord& point) {
  const auto at = static_cast<uint32_t>(size());
  sequences.push_back(sequence);
  times_us.push_back(absl::ToUnixMicros(time));
  steps.push_back(point.step);
  splits.push_back(point.split);
  for (const auto& [name, value] : point.values) {
    Column& column = columns[{point.split, name}];
    column.at.push_back(at);
    column.values.push_back(value);
  }
}

void MetricBlock::Add(int64_t sequence, const MetricRun& run) {
  const size_t before = size();
  for (size_t i = 0; i < run.steps.size(); ++i) {
    sequences.push_back(sequence + static_cast<int64_t>(i));
    times_us.push_back(absl::ToUnixMicros(run.times[i]));
  }
  steps.insert(steps.end(), run.steps.begin(), run.steps.end());
  splits.resize(steps.size(), run.split);
  for (size_t name = 0; name < run.names.size(); ++name) {
    Column& column = columns[{run.split, run.names[name]}];
    for (size_t i = before; i < size(); ++i) column.at.push_back(static_cast<uint32_t>(i));
    column.values.insert(column.values.end(), run.values[name].begin(), run.values[name].end());
  }
}

void MetricBlock::Add(const MetricBlock& later) {
  const auto before = static_cast<uint32_t>(size());
  sequences.insert(sequences.end(), later.sequences.begin(), later.sequences.end());
  times_us.insert(times_us.end(), later.times_us.begin(), later.times_us.end());
  steps.insert(steps.end(), later.steps.begin(), later.steps.end());
  splits.insert(splits.end(), later.splits.begin(), later.splits.end());
  for (const auto& [key, from] : later.columns) {
    Column& column = columns[key];
    for (const uint32_t at : from.at) column.at.push_back(before + at);
    column.values.insert(column.values.end(), from.values.begin(), from.values.end());
  }
}

std::string EncodeIndex(const MetricBlock& block) {
  std::vector<int64_t> splits;
  splits.reserve(block.size());
  for (const MetricSplit split : block.splits) splits.push_back(NumberOf(split));
  std::string bytes;
  PutVarint(static_cast<uint64_t>(block.attempt), bytes);
  PutPiece(EncodeIntegers(block.sequences), bytes);
  PutPiece(EncodeIntegers(block.times_us), bytes);
  PutPiece(EncodeIntegers(block.steps), bytes);
  PutPiece(EncodeIntegers(splits), bytes);
  return bytes;
}

absl::StatusOr<MetricBlock> DecodeIndex(absl::string_view bytes, size_t points) {
  if (points > kMostBlockPoints) return Damaged("too many points");
  PieceReader reader(bytes);
  MetricBlock block;
  block.attempt = static_cast<int64_t>(reader.Varint());
  TY_ASSIGN_OR_RETURN(block.sequences, DecodeIntegers(reader.Piece(), points));
  TY_ASSIGN_OR_RETURN(block.times_us, DecodeIntegers(reader.Piece(), points));
  TY_ASSIGN_OR_RETURN(block.steps, DecodeIntegers(reader.Piece(), points));
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> splits, DecodeIntegers(reader.Piece(), points));
  if (!reader.AtEnd()) return Damaged("its index");
  for (const int64_t number : splits) {
    TY_ASSIGN_OR_RETURN(const MetricSplit split, SplitOf(static_cast<uint64_t>(number)));
    block.splits.push_back(split);
  }
  return block;
}

std::string EncodeColumn(const MetricBlock& block, const MetricBlock::Key& key) {
  const MetricBlock::Column& column = block.columns.at(key);
  std::string bytes;
  PutVarint(column.values.size(), bytes);
  if (column.at == PointsOf(block, key.first)) {
    PutPiece("", bytes);
  } else {
    PutPiece(EncodeIntegers(std::vector<int64_t>(column.at.begin(), column.at.end())), bytes);
  }
  bytes += EncodeDoubles(column.values);
  return bytes;
}

absl::Status DecodeColumn(absl::string_view bytes, const MetricBlock::Key& key,
                          MetricBlock& block) {
  PieceReader reader(bytes);
  const uint64_t count = reader.Varint();
  const absl::string_view places = reader.Piece();
  if (!reader.ok() || count == 0 || count > block.size()) return Damaged("a column");
  MetricBlock::Column column;
  TY_ASSIGN_OR_RETURN(column.at, DecodePlaces(block, key.first, count, places));
  TY_ASSIGN_OR_RETURN(column.values, DecodeDoubles(reader.Rest(), count));
  if (!block.columns.emplace(key, std::move(column)).second) return Damaged("a column twice");
  return absl::OkStatus();
}

std::string EncodeBlock(const MetricBlock& block) {
  std::string bytes;
  PutVarint(block.size(), bytes);
  PutPiece(EncodeIndex(block), bytes);
  for (const auto& [key, column] : block.columns) {
    PutVarint(static_cast<uint64_t>(NumberOf(key.first)), bytes);
    PutPiece(key.second, bytes);
    PutPiece(EncodeColumn(block, key), bytes);
  }
  return bytes;
}

absl::StatusOr<MetricBlock> DecodeBlock(absl::string_view bytes) {
  PieceReader reader(bytes);
  const uint64_t points = reader.Varint();
  const absl::string_view index = reader.Piece();
  if (!reader.ok()) return Damaged("its beginning");
  TY_ASSIGN_OR_RETURN(MetricBlock block, DecodeIndex(index, points));
  while (reader.ok() && !reader.AtEnd()) {
    TY_ASSIGN_OR_RETURN(const MetricSplit split, SplitOf(reader.Varint()));
    const absl::string_view name = reader.Piece();
    TY_RETURN_IF_ERROR(DecodeColumn(reader.Piece(), {split, std::string(name)}, block));
  }
  if (!reader.ok()) return Damaged("its end");
  return block;
}

MetricBlock SliceBlock(const MetricBlock& block, size_t from, size_t count) {
  const size_t end = std::min(block.size(), from + count);
  const auto cut = [from, end](const auto& items) {
    return std::decay_t<decltype(items)>(items.begin() + static_cast<std::ptrdiff_t>(from),
                                         items.begin() + static_cast<std::ptrdiff_t>(end));
  };
  MetricBlock slice{.attempt = block.attempt,
                    .sequences = cut(block.sequences),
                    .times_us = cut(block.times_us),
                    .steps = cut(block.steps),
                    .splits = cut(block.splits)};
  for (const auto& [key, column] : block.columns) {
    const auto first = std::lower_bound(column.at.begin(), column.at.end(), from);
    const auto last = std::lower_bound(first, column.at.end(), end);
    if (first == last) continue;
    MetricBlock::Column& part = slice.columns[key];
    for (auto at = first; at != last; ++at) part.at.push_back(static_cast<uint32_t>(*at - from));
    part.values.assign(column.values.begin() + (first - column.at.begin()),
                       column.values.begin() + (last - column.at.begin()));
  }
  return slice;
}

std::vector<MetricRow> RowsOf(const MetricBlock& block) {
  std::vector<MetricRow> rows(block.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].sequence = block.sequences[i];
    rows[i].attempt = block.attempt;
    rows[i].time = absl::FromUnixMicros(block.times_us[i]);
    rows[i].point.step = block.steps[i];
    rows[i].point.split = block.splits[i];
  }
  for (const auto& [key, column] : block.columns) {
    for (size_t i = 0; i < column.at.size(); ++i) {
      rows[column.at[i]].point.values.emplace(key.second, column.values[i]);
    }
  }
  return rows;
}

}  // namespace trainyard
