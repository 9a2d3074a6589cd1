#include "storage/records/metric_rollup.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/records/metric_codec.h"

namespace trainyard {
namespace {

constexpr int64_t kMostBucket = int64_t{1} << 53;  // steps go no further

}  // namespace

void MetricFold::Add(int64_t step, double value) {
  ++count;
  if (step >= last_step) {
    last_step = step;
    last = value;
  }
  if (std::isnan(value)) return;
  ++numbers;
  min = std::min(min, value);
  max = std::max(max, value);
  sum += value;
}

void MetricFold::Add(const MetricFold& other) {
  count += other.count;
  numbers += other.numbers;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  sum += other.sum;
  if (other.last_step >= last_step) {
    last_step = other.last_step;
    last = other.last;
  }
}

double MetricFold::Least() const { return numbers == 0 ? std::nan("") : min; }
double MetricFold::Most() const { return numbers == 0 ? std::nan("") : max; }
double MetricFold::Mean() const {
  return numbers == 0 ? std::nan("") : sum / static_cast<double>(numbers);
}

int64_t WidthOf(int level) {
  int64_t width = 1;
  for (; level > 0; --level) width *= 10;
  return width;
}

void AddBucket(int64_t bucket, int64_t from, const MetricFold& fold, int64_t to, RollUp& roll_up) {
  roll_up[bucket / (to / from)].Add(fold);
}

void FoldColumn(const MetricBlock& block, const MetricBlock::Column& column, int64_t width,
                int64_t last, RollUp& roll_up) {
  MetricFold* fold = nullptr;
  int64_t bucket = -1;
  for (size_t i = 0; i < column.at.size(); ++i) {
    const int64_t step = block.steps[column.at[i]];
    if (step > last) continue;
    const int64_t lies_in = (step - 1) / width;
    if (fold == nullptr || lies_in != bucket) fold = &roll_up[bucket = lies_in];
    fold->Add(step, column.values[i]);
  }
}

std::string EncodeRollUp(const RollUp& roll_up) {
  std::vector<int64_t> buckets, counts, nans, last_steps;
  std::vector<double> mins, maxs, sums, lasts;
  for (const auto& [bucket, fold] : roll_up) {
    buckets.push_back(bucket);
    counts.push_back(fold.count);
    nans.push_back(fold.count - fold.numbers);
    last_steps.push_back(fold.last_step);
    mins.push_back(fold.min);
    maxs.push_back(fold.max);
    sums.push_back(fold.sum);
    lasts.push_back(fold.last);
  }
  std::string bytes;
  PutVarint(roll_up.size(), bytes);
  for (const auto* integers : {&buckets, &counts, &nans, &last_steps}) {
    PutPiece(EncodeIntegers(*integers), bytes);
  }
  for (const auto* doubles : {&mins, &maxs, &sums, &lasts}) {
    PutPiece(EncodeDoubles(*doubles), bytes);
  }
  return bytes;
}

absl::StatusOr<RollUp> DecodeRollUp(absl::string_view bytes) {
  PieceReader reader(bytes);
  const uint64_t size = reader.Varint();
  if (!reader.ok() || size > kMostBlockPoints) {
    return absl::DataLossError("a roll-up of metrics is damaged: its size");
  }
  std::vector<int64_t> integers[4];
  std::vector<double> doubles[4];
  for (auto& column : integers) {
    TY_ASSIGN_OR_RETURN(column, DecodeIntegers(reader.Piece(), size));
  }
  for (auto& column : doubles) {
    TY_ASSIGN_OR_RETURN(column, DecodeDoubles(reader.Piece(), size));
  }
  if (!reader.AtEnd()) return absl::DataLossError("a roll-up of metrics is damaged: its end");
  RollUp roll_up;
  for (size_t i = 0; i < size; ++i) {
    const int64_t bucket = integers[0][i];
    const int64_t count = integers[1][i];
    const int64_t nans = integers[2][i];
    if (bucket < 0 || bucket > kMostBucket || count < 1 || nans < 0 || nans > count ||
        (!roll_up.empty() && bucket <= roll_up.rbegin()->first)) {
      return absl::DataLossError("a roll-up of metrics is damaged: a bucket");
    }
    roll_up.emplace_hint(roll_up.end(), bucket,
                         MetricFold{.count = count,
                                    .numbers = count - nans,
                                    .min = doubles[0][i],
                                    .max = doubles[1][i],
                                    .sum = doubles[2][i],
                                    .last_step = integers[3][i],
                                    .last = doubles[3][i]});
  }
  return roll_up;
}

BucketPlan PlanBuckets(int64_t steps, int64_t buckets) {
  const int64_t least = steps <= buckets ? 1 : 1 + (steps - 1) / buckets;
  BucketPlan plan;
  while (plan.level < kHighestLevel && WidthOf(plan.level + 1) <= least) ++plan.level;
  const int64_t unit = WidthOf(plan.level);
  plan.width = (least + unit - 1) / unit * unit;
  return plan;
}

bool MetricBucketQuery::Wants(MetricSplit split, const std::string& name) const {
  if (!(split == MetricSplit::kTrain ? train : validation)) return false;
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

BucketRange RangeOf(const MetricBucketQuery& query, int64_t newest) {
  const int64_t from = std::max<int64_t>(query.from_step, 1);
  const int64_t to = std::min(query.to_step, newest);
  BucketRange range;
  if (from > to) return range;
  range.plan = PlanBuckets(to - from + 1, std::max<int64_t>(query.buckets, 1));
  const int64_t width = range.plan.width;
  range.first_step = (from - 1) / width * width + 1;
  const int64_t last = (to - 1) / width;
  range.last_step = last > INT64_MAX / width - 2 ? INT64_MAX : (last + 1) * width;
  return range;
}

std::vector<MetricBucket> BucketsOf(const MetricCurves& curves, const BucketRange& range) {
  const int64_t width = range.plan.width;
  std::vector<MetricBucket> buckets;
  for (const auto& [key, roll_up] : curves) {
    for (const auto& [bucket, fold] : roll_up) {
      const int64_t first = bucket * width + 1;
      if (first < range.first_step || first > range.last_step) continue;
      buckets.push_back({.split = key.first,
                         .name = key.second,
                         .first_step = first,
                         .last_step = first + width - 1,
                         .fold = fold});
    }
  }
  return buckets;
}

}  // namespace trainyard
