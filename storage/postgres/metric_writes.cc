#include "storage/postgres/metric_writes.h"

#include <algorithm>
#include <map>
#include <pqxx/pqxx>
#include <set>

#include "storage/base/status.h"
#include "storage/postgres/metric_rows.h"
#include "storage/postgres/queries.inc.h"
#include "storage/records/metric_rollup.h"

namespace trainyard::postgres {
namespace {

constexpr int kWorthAChunk = 64;  // points of an ended job

// Rows of metric_chunks as columns, for one statement.
class ChunkRows {
 public:
  void Add(int level, const ChunkSpan& span, int split, const std::string& name, size_t points,
           const std::string& bytes) {
    levels_.push_back(level);
    first_sequences_.push_back(span.first_sequence);
    splits_.push_back(split);
    names_.push_back(name);
    last_sequences_.push_back(span.last_sequence);
    attempts_.push_back(span.attempt);
    first_steps_.push_back(span.first_step);
    last_steps_.push_back(span.last_step);
    points_.push_back(static_cast<int>(points));
    bytes_.push_back(ByteaLiteral(bytes));
  }

  void Insert(Transaction& transaction, const std::string& uid) const {
    // Not prepared: with many rows the planner must know how many they are.
    transaction.RunText(kPutMetricChunks.text,
                        Params(uid, levels_, first_sequences_, splits_, names_, last_sequences_,
                               attempts_, first_steps_, last_steps_, points_, bytes_));
  }

 private:
  std::vector<int> levels_, splits_, points_;
  std::vector<int64_t> first_sequences_, last_sequences_, attempts_, first_steps_, last_steps_;
  std::vector<std::string> names_, bytes_;
};

ChunkSpan SpanOf(const MetricBlock& block) {
  return {.attempt = block.attempt,
          .first_sequence = block.sequences.front(),
          .last_sequence = block.sequences.back(),
          .first_step = block.first_step(),
          .last_step = block.last_step()};
}

// A chunk with its roll-up of the first level.
void AddChunk(const MetricBlock& block, ChunkRows& rows) {
  const ChunkSpan span = SpanOf(block);
  rows.Add(0, span, kIndexSplit, "", block.size(), EncodeIndex(block));
  for (const auto& [key, column] : block.columns) {
    rows.Add(0, span, SplitNumber(key.first), key.second, column.values.size(),
             EncodeColumn(block, key));
    RollUp roll_up;
    FoldColumn(block, column, WidthOf(1), INT64_MAX, roll_up);
    rows.Add(1, span, SplitNumber(key.first), key.second, roll_up.size(), EncodeRollUp(roll_up));
  }
}

// Chunks of one attempt, folded into one of the next level.
struct Group {
  ChunkSpan span;
  MetricCurves curves;
};

// Folds the chunks of `level` that no chunk of the next level holds yet into chunks of the next
// level, one for each attempt.
absl::StatusOr<std::vector<Group>> FoldLevel(const pqxx::result& chunks, int level) {
  std::vector<Group> groups;
  for (const pqxx::row& row : chunks) {
    if (row["level"].as<int>() != level) continue;
    const ChunkSpan span = SpanOfRow(row);
    if (groups.empty() || groups.back().span.attempt != span.attempt) {
      groups.push_back({.span = span, .curves = {}});
    }
    Group& group = groups.back();
    group.span.last_sequence = std::max(group.span.last_sequence, span.last_sequence);
    group.span.first_step = std::min(group.span.first_step, span.first_step);
    group.span.last_step = std::max(group.span.last_step, span.last_step);
    TY_ASSIGN_OR_RETURN(const RollUp roll_up, DecodeRollUp(BytesOf(row["bytes"])));
    RollUp& into = group.curves[{SplitOfRow(row), row["name"].as<std::string>()}];
    for (const auto& [bucket, fold] : roll_up) {
      AddBucket(bucket, WidthOf(level), fold, WidthOf(level + 1), into);
    }
  }
  return groups;
}

// Rolls up each level, from 1 upwards, that has kFanIn chunks which the next level does not hold
// yet.
absl::Status RollUpFrom(Transaction& transaction, const std::string& uid) {
  for (int level = 1; level < kHighestLevel; ++level) {
    const int waiting = transaction.Run(kCountUnrolled, Params(uid, level))[0][0].as<int>();
    if (waiting < kFanIn) break;
    const pqxx::result chunks = transaction.Run(kReadUnrolled, Params(uid, level));
    TY_ASSIGN_OR_RETURN(const std::vector<Group> groups, FoldLevel(chunks, level));
    ChunkRows rows;
    for (const Group& group : groups) {
      for (const auto& [key, roll_up] : group.curves) {
        rows.Add(level + 1, group.span, SplitNumber(key.first), key.second, roll_up.size(),
                 EncodeRollUp(roll_up));
      }
    }
    rows.Insert(transaction, uid);
  }
  return absl::OkStatus();
}

// Turns all of the job's heads, and `points` behind them, into chunks, at least one for each
// attempt.
absl::Status Compact(Transaction& transaction, const std::string& uid, const MetricBlock* points) {
  std::map<int64_t, std::string> heads;  // by sequence
  for (const pqxx::row& row : transaction.Run(kTakeMetricHeads, Params(uid))) {
    heads.emplace(row["first_sequence"].as<int64_t>(), BytesOf(row["bytes"]));
  }
  std::vector<MetricBlock> blocks;
  for (const auto& [sequence, bytes] : heads) {
    TY_ASSIGN_OR_RETURN(MetricBlock head, DecodeBlock(bytes));
    if (blocks.empty() || blocks.back().attempt != head.attempt) {
      blocks.push_back(std::move(head));
    } else {
      blocks.back().Add(head);
    }
  }
  if (points != nullptr && !blocks.empty() && blocks.back().attempt == points->attempt) {
    blocks.back().Add(*points);
  } else if (points != nullptr) {
    blocks.push_back(*points);
  }
  ChunkRows rows;
  for (const MetricBlock& block : blocks) {
    const size_t chunks = std::max<size_t>(1, block.size() / kChunkPoints);
    const size_t size = (block.size() + chunks - 1) / chunks;
    for (size_t from = 0; from < block.size(); from += size) {
      AddChunk(chunks == 1 ? block : SliceBlock(block, from, size), rows);
    }
  }
  if (blocks.empty()) return absl::OkStatus();
  rows.Insert(transaction, uid);
  return RollUpFrom(transaction, uid);
}

}  // namespace

absl::Status WriteMetrics(Transaction& transaction,
                          const std::map<std::string, MetricBlock>& points) {
  std::vector<std::string> uids, bytes;
  std::vector<int64_t> first_sequences, last_sequences, attempts, first_steps, last_steps;
  std::vector<int> counts;
  std::set<std::string> full;  // jobs whose heads become chunks
  for (const auto& [uid, block] : points) {
    if (block.size() == 0) continue;
    full.insert(uid);
    if (block.size() >= kChunkPoints) continue;
    const ChunkSpan span = SpanOf(block);
    uids.push_back(uid);
    first_sequences.push_back(span.first_sequence);
    last_sequences.push_back(span.last_sequence);
    attempts.push_back(span.attempt);
    first_steps.push_back(span.first_step);
    last_steps.push_back(span.last_step);
    counts.push_back(static_cast<int>(block.size()));
    bytes.push_back(ByteaLiteral(EncodeBlock(block)));
  }
  if (!uids.empty()) {
    for (const pqxx::row& put : transaction.Run(
             kPutMetricHeads, Params(uids, first_sequences, last_sequences, attempts, first_steps,
                                     last_steps, counts, bytes, kChunkPoints))) {
      full.erase(put[0].as<std::string>());
    }
  }
  for (const std::string& uid : full) {
    TY_RETURN_IF_ERROR(Compact(transaction, uid, &points.at(uid)));
  }
  return absl::OkStatus();
}

absl::Status CompactHeads(Transaction& transaction, const std::string& uid) {
  const pqxx::result pending = transaction.Run(kPendingPoints, Params(uid));
  if (pending.empty() || pending[0][0].as<int>() < kWorthAChunk) return absl::OkStatus();
  return Compact(transaction, uid, nullptr);
}

}  // namespace trainyard::postgres
