#include "storage/postgres/metric_reads.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <pqxx/pqxx>
#include <tuple>

#include "storage/base/status.h"
#include "storage/postgres/metric_rows.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"

namespace trainyard::postgres {
namespace {

constexpr int kFeedChunks = 2;  // read at a time
constexpr int kStepChunks = 4;
constexpr int kOldRows = 10000;

// The step up to which the points of each attempt are current; later ones are superseded.
class Cuts {
 public:
  explicit Cuts(const pqxx::result& rows) {
    for (const pqxx::row& row : rows) {
      if (!row[1].is_null()) cuts_[row[0].as<int64_t>()] = row[1].as<int64_t>();
    }
  }
  int64_t Of(int64_t attempt) const {
    const auto found = cuts_.find(attempt);
    return found == cuts_.end() ? INT64_MAX : found->second;
  }

 private:
  std::map<int64_t, int64_t> cuts_;
};

Cuts ReadCuts(Transaction& transaction, const std::string& uid) {
  return Cuts(transaction.Run(kReadCuts, Params(uid)));
}

std::vector<int> SplitsOf(bool train, bool validation) {
  std::vector<int> splits;
  if (train) splits.push_back(SplitNumber(MetricSplit::kTrain));
  if (validation) splits.push_back(SplitNumber(MetricSplit::kValidation));
  return splits;
}

// Rows of the old table `metrics` that match the query.
std::vector<MetricRow> ReadOldPoints(Transaction& transaction, const std::string& uid,
                                     const JobStore::MetricQuery& query) {
  std::vector<MetricRow> rows;
  for (const pqxx::row& row : transaction.Run(
           kReadMetrics,
           Params(uid, query.from_step, query.to_step, SplitsOf(query.train, query.validation),
                  query.after_step, SplitNumber(query.after_split), query.after_attempt,
                  query.include_superseded, std::max(query.limit, 0)))) {
    rows.push_back(MetricRowOf(row));
  }
  return rows;
}

auto KeyOf(const MetricRow& row) {
  return std::make_tuple(row.point.step, row.point.split, row.attempt);
}

// The points of a block that a query asks for.
void Pick(const MetricBlock& block, const JobStore::MetricQuery& query, const Cuts& cuts,
          std::vector<MetricRow>& picked) {
  const auto after = std::make_tuple(query.after_step, query.after_split, query.after_attempt);
  const int64_t cut = cuts.Of(block.attempt);
  for (MetricRow& row : RowsOf(block)) {
    const int64_t step = row.point.step;
    if (step < query.from_step || step > query.to_step) continue;
    if (!(row.point.split == MetricSplit::kTrain ? query.train : query.validation)) continue;
    row.superseded = step > cut;
    if (row.superseded && !query.include_superseded) continue;
    if (KeyOf(row) > after) picked.push_back(std::move(row));
  }
}

absl::StatusOr<std::vector<MetricBlock>> ReadHeadBlocks(Transaction& transaction,
                                                        const std::string& uid, int64_t from,
                                                        int64_t to) {
  std::vector<MetricBlock> blocks;
  for (const pqxx::row& row : transaction.Run(kReadHeads, Params(uid, from, to))) {
    TY_ASSIGN_OR_RETURN(MetricBlock block, DecodeBlock(BytesOf(row["bytes"])));
    blocks.push_back(std::move(block));
  }
  return blocks;
}

// --- feed -----------------------------------------------------------------------------------

// One statement's worth of a feed: complete up to `end`.
struct FeedPage {
  std::vector<FeedRecord> items;
  int64_t end = INT64_MAX;
};

void AddPoints(const MetricBlock& block, int64_t after, std::vector<FeedRecord>& items) {
  for (MetricRow& row : RowsOf(block)) {
    if (row.sequence <= after) continue;
    items.push_back({.sequence = row.sequence,
                     .time = row.time,
                     .attempt = row.attempt,
                     .what = std::move(row.point)});
  }
}

// Makes a page of the rows that one statement returned for one job.
absl::StatusOr<FeedPage> FeedPageOf(const std::vector<pqxx::row>& rows, int64_t after) {
  FeedPage page;
  std::map<int64_t, std::map<std::pair<int, std::string>, pqxx::row>> chunks;  // by last sequence
  for (const pqxx::row& row : rows) {
    const std::string kind = row["kind"].as<std::string>();
    if (kind == "HEAD") {
      TY_ASSIGN_OR_RETURN(const MetricBlock head, DecodeBlock(BytesOf(row["bytes"])));
      AddPoints(head, after, page.items);
    } else if (kind == "CHUNK") {
      chunks[row["sequence"].as<int64_t>()].emplace(
          std::make_pair(row["split"].as<int>(), row["name"].as<std::string>()), row);
    } else {
      // A packed row may begin before the cursor, and go on past the end of the page.
      for (FeedRecord& item : FeedItemsOf(row)) {
        if (item.sequence > after) page.items.push_back(std::move(item));
      }
    }
  }
  for (const auto& [last, columns] : chunks) {
    std::optional<MetricBlock> block;
    for (const auto& [key, row] : columns) {  // the index first
      const std::string bytes = BytesOf(row["bytes"]);
      if (!block.has_value()) {
        TY_ASSIGN_OR_RETURN(block, DecodeIndex(bytes, row["points"].as<size_t>()));
        continue;
      }
      TY_RETURN_IF_ERROR(DecodeColumn(bytes, {SplitOfRow(row), key.second}, *block));
    }
    AddPoints(*block, after, page.items);
  }
  // There may be more chunks, with points between the last one that was read and the items behind
  // it.
  if (chunks.size() == kFeedChunks) page.end = chunks.rbegin()->first;
  std::sort(page.items.begin(), page.items.end(),
            [](const FeedRecord& a, const FeedRecord& b) { return a.sequence < b.sequence; });
  while (!page.items.empty() && page.items.back().sequence > page.end) page.items.pop_back();
  return page;
}

// --- buckets --------------------------------------------------------------------------------

// Folds what a query asks for.
class BucketReader {
 public:
  BucketReader(Transaction& transaction, const std::string& uid, const MetricBucketQuery& query,
               const BucketRange& range)
      : transaction_(transaction),
        uid_(uid),
        query_(query),
        range_(range),
        cuts_(ReadCuts(transaction, uid)) {}

  absl::StatusOr<MetricCurves> Read() {
    if (range_.plan.level == 0) {
      TY_RETURN_IF_ERROR(AddChunks(range_.first_step, range_.last_step, 0, INT64_MAX));
    } else {
      TY_RETURN_IF_ERROR(AddRollUps());
    }
    TY_ASSIGN_OR_RETURN(const std::vector<MetricBlock> heads,
                        ReadHeadBlocks(transaction_, uid_, range_.first_step, range_.last_step));
    for (const MetricBlock& head : heads) AddBlock(head, 0, INT64_MAX);
    AddOld();
    return std::move(curves_);
  }

 private:
  void AddBlock(const MetricBlock& block, int64_t first_step, int64_t last_step) {
    const int64_t last = std::min(last_step, cuts_.Of(block.attempt));
    for (const auto& [key, column] : block.columns) {
      if (!query_.Wants(key.first, key.second)) continue;
      RollUp& curve = curves_[key];
      if (first_step <= 1) {
        FoldColumn(block, column, range_.plan.width, last, curve);
        continue;
      }
      for (size_t i = 0; i < column.at.size(); ++i) {
        const int64_t step = block.steps[column.at[i]];
        if (step < first_step || step > last) continue;
        curve[(step - 1) / range_.plan.width].Add(step, column.values[i]);
      }
    }
  }

  absl::Status AddChunks(int64_t first_step, int64_t last_step, int64_t first_sequence,
                         int64_t last_sequence) {
    TY_ASSIGN_OR_RETURN(
        const std::vector<Chunk> chunks,
        ChunksOf(transaction_.Run(kReadChunks, Params(uid_, first_step, last_step, first_sequence,
                                                      last_sequence, query_.names))));
    for (const Chunk& chunk : chunks) AddBlock(chunk.block, first_step, last_step);
    return absl::OkStatus();
  }

  absl::Status AddRollUps() {
    // Where an attempt was superseded in the middle of a bucket, the points of that bucket are read
    // one by one. Each entry: first and last step, first and last sequence.
    std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> torn;
    for (const pqxx::row& row :
         transaction_.Run(kReadRollUps,
                          Params(uid_, range_.plan.level, SplitsOf(query_.train, query_.validation),
                                 query_.names, range_.first_step, range_.last_step))) {
      const ChunkSpan span = SpanOfRow(row);
      const int64_t cut = cuts_.Of(span.attempt);
      const int64_t width = WidthOf(row["level"].as<int>());
      TY_ASSIGN_OR_RETURN(const RollUp roll_up, DecodeRollUp(BytesOf(row["bytes"])));
      RollUp& curve = curves_[{SplitOfRow(row), row["name"].as<std::string>()}];
      for (const auto& [bucket, fold] : roll_up) {
        const int64_t before = bucket * width;  // the steps before the bucket
        if (before >= cut) break;
        if (cut - before < width) {
          torn.emplace(before + 1, cut, span.first_sequence, span.last_sequence);
        } else {
          AddBucket(bucket, width, fold, range_.plan.width, curve);
        }
      }
    }
    for (const auto& [first_step, last_step, first_sequence, last_sequence] : torn) {
      TY_RETURN_IF_ERROR(AddChunks(first_step, last_step, first_sequence, last_sequence));
    }
    return absl::OkStatus();
  }

  void AddOld() {
    JobStore::MetricQuery query{.train = query_.train,
                                .validation = query_.validation,
                                .from_step = range_.first_step,
                                .to_step = range_.last_step,
                                .limit = kOldRows};
    for (bool more = true; more;) {
      const std::vector<MetricRow> rows = ReadOldPoints(transaction_, uid_, query);
      for (const MetricRow& row : rows) {
        const MetricRecord& point = row.point;
        for (const auto& [name, value] : point.values) {
          if (!query_.Wants(point.split, name)) continue;
          curves_[{point.split, name}][(point.step - 1) / range_.plan.width].Add(point.step, value);
        }
        std::tie(query.after_step, query.after_split, query.after_attempt) = KeyOf(row);
      }
      more = rows.size() == kOldRows;
    }
  }

  Transaction& transaction_;
  const std::string& uid_;
  const MetricBucketQuery& query_;
  const BucketRange& range_;
  const Cuts cuts_;
  MetricCurves curves_;
};

}  // namespace

void StepRange::Add(const RankEventRecord& event) {
  const auto include = [this](int64_t step) {
    from = std::min(from, step);
    to = std::max(to, step);
  };
  if (const auto* metric = std::get_if<MetricRecord>(&event.what)) include(metric->step);
  if (const auto* run = std::get_if<MetricRun>(&event.what)) {
    std::for_each(run->steps.begin(), run->steps.end(), include);
  }
}

absl::StatusOr<std::vector<SeriesPoints>> ReadSeries(Transaction& transaction,
                                                     const std::vector<StepRange>& ranges) {
  std::vector<SeriesPoints> series(ranges.size());
  std::vector<std::string> uids;
  std::vector<int64_t> from, to;
  for (const StepRange& range : ranges) {
    uids.push_back(range.job_uid);
    from.push_back(range.from);
    to.push_back(range.to);
  }
  const Params wanted(uids, from, to);
  for (const pqxx::row& row : transaction.Run(kReadIndexes, wanted)) {
    const size_t place = row["place"].as<size_t>() - 1;
    const std::string bytes = BytesOf(row["bytes"]);
    TY_ASSIGN_OR_RETURN(const MetricBlock block,
                        row["chunk"].as<bool>() ? DecodeIndex(bytes, row["points"].as<size_t>())
                                                : DecodeBlock(bytes));
    const int64_t cut = row["cut"].is_null() ? INT64_MAX : row["cut"].as<int64_t>();
    for (size_t i = 0; i < block.size(); ++i) {
      const int64_t step = block.steps[i];
      if (step >= ranges[place].from && step <= std::min(ranges[place].to, cut)) {
        series[place].emplace(step, block.splits[i]);
      }
    }
  }
  for (const pqxx::row& row : transaction.Run(kCurrentPoints, wanted)) {
    series[row["place"].as<size_t>() - 1].emplace(row["step"].as<int64_t>(), SplitOfRow(row));
  }
  return series;
}

absl::StatusOr<std::vector<std::vector<FeedRecord>>> ReadFeedItems(
    Transaction& transaction, const std::vector<FeedPosition>& positions, int limit) {
  std::vector<std::vector<FeedRecord>> feeds(positions.size());
  // The positions that are still to be read, and the place of each in `feeds`.
  std::vector<FeedPosition> unread = positions;
  std::vector<size_t> places;
  for (size_t i = 0; i < positions.size(); ++i) places.push_back(i);
  while (!unread.empty() && limit > 0) {
    std::vector<std::string> uids;
    std::vector<int64_t> after;
    for (const FeedPosition& position : unread) {
      uids.push_back(position.job_uid);
      after.push_back(position.after);
    }
    std::vector<std::vector<pqxx::row>> rows(unread.size());
    for (const pqxx::row& row :
         transaction.Run(kReadFeeds, Params(uids, after, limit, kFeedChunks))) {
      rows[row["place"].as<size_t>() - 1].push_back(row);
    }
    std::vector<FeedPosition> still_unread;
    std::vector<size_t> still_places;
    for (size_t i = 0; i < unread.size(); ++i) {
      TY_ASSIGN_OR_RETURN(FeedPage page, FeedPageOf(rows[i], unread[i].after));
      std::vector<FeedRecord>& items = feeds[places[i]];
      std::move(page.items.begin(), page.items.end(), std::back_inserter(items));
      if (items.size() >= static_cast<size_t>(limit)) {
        items.resize(limit);
      } else if (page.end < INT64_MAX) {
        still_unread.push_back({.job_uid = unread[i].job_uid, .after = page.end});
        still_places.push_back(places[i]);
      }
    }
    unread = std::move(still_unread);
    places = std::move(still_places);
  }
  return feeds;
}

absl::StatusOr<std::vector<MetricRow>> ReadPoints(Transaction& transaction, const std::string& uid,
                                                  const JobStore::MetricQuery& query) {
  const auto limit = static_cast<size_t>(std::max(query.limit, 0));
  const Cuts cuts = ReadCuts(transaction, uid);
  const int64_t from = std::max(query.from_step, query.after_step);
  std::vector<MetricRow> rows = ReadOldPoints(transaction, uid, query);
  // If the limit ends the old rows, the points behind them are cut off below.
  TY_ASSIGN_OR_RETURN(const std::vector<MetricBlock> heads,
                      ReadHeadBlocks(transaction, uid, from, query.to_step));
  for (const MetricBlock& head : heads) Pick(head, query, cuts, rows);
  int64_t first_step = -1;
  int64_t first_sequence = 0;
  for (bool more = true; more;) {
    TY_ASSIGN_OR_RETURN(
        const std::vector<Chunk> chunks,
        ChunksOf(transaction.Run(kReadNextChunks,
                                 Params(uid, from, query.to_step, first_step, first_sequence,
                                        query.include_superseded, kStepChunks))));
    for (const Chunk& chunk : chunks) Pick(chunk.block, query, cuts, rows);
    more = chunks.size() == kStepChunks;
    if (more) {
      first_step = chunks.back().span.first_step;
      first_sequence = chunks.back().span.first_sequence;
    }
    // Chunks come in the order of their first steps, so no later one has a step below the first
    // step of the last one that was read.
    const auto settled = [&](const MetricRow& row) { return !more || row.point.step < first_step; };
    if (more && static_cast<size_t>(std::count_if(rows.begin(), rows.end(), settled)) >= limit) {
      more = false;
    }
  }
  std::sort(rows.begin(), rows.end(),
            [](const MetricRow& a, const MetricRow& b) { return KeyOf(a) < KeyOf(b); });
  if (rows.size() > limit) rows.resize(limit);
  return rows;
}

absl::StatusOr<std::vector<MetricBucket>> ReadBuckets(Transaction& transaction,
                                                      const std::string& uid,
                                                      const MetricBucketQuery& query) {
  const pqxx::result newest = transaction.Run(kNewestPoint, Params(uid));
  const BucketRange range = RangeOf(query, newest[0][0].is_null() ? 0 : newest[0][0].as<int64_t>());
  if (range.last_step < range.first_step) return std::vector<MetricBucket>();
  BucketReader reader(transaction, uid, query, range);
  TY_ASSIGN_OR_RETURN(const MetricCurves curves, reader.Read());
  return BucketsOf(curves, range);
}

}  // namespace trainyard::postgres
