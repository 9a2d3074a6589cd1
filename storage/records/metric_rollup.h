#pragma once

// Values of a metric folded by buckets of steps, for curves of long jobs. Pure.

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/records/metric_block.h"

namespace trainyard {

// Statistics of some values. A NaN counts in `count` and may be `last`, but is left out of min, max
// and sum.
struct MetricFold {
  int64_t count = 0;
  int64_t numbers = 0;  // that are not NaN
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  int64_t last_step = 0;
  double last = 0;  // of last_step

  void Add(int64_t step, double value);
  void Add(const MetricFold& other);  // of other steps

  // NaN when all values were NaN.
  double Least() const;
  double Most() const;
  double Mean() const;
};

// By bucket: with width w, bucket b has the steps b * w + 1 to (b + 1) * w.
using RollUp = std::map<int64_t, MetricFold>;

// Level l has buckets of 10^l steps. Higher ones are not kept.
inline constexpr int kHighestLevel = 6;
int64_t WidthOf(int level);

// Adds `fold`, of bucket `bucket` of width `from`, to the bucket of width `to` that contains it.
// `to` is a multiple of `from`.
void AddBucket(int64_t bucket, int64_t from, const MetricFold& fold, int64_t to, RollUp& roll_up);

// Folds the values of `column` at steps up to `last` into buckets of `width`.
void FoldColumn(const MetricBlock& block, const MetricBlock::Column& column, int64_t width,
                int64_t last, RollUp& roll_up);

std::string EncodeRollUp(const RollUp& roll_up);
// kDataLoss for bytes that EncodeRollUp did not write, as far as can be told. Takes a bounded
// amount of memory.
absl::StatusOr<RollUp> DecodeRollUp(absl::string_view bytes);

// How to cut `steps` steps into at most `buckets` whole buckets that can be made of the levels that
// are kept: their width, and the level to make them of. Since buckets are aligned, there may be one
// more.
struct BucketPlan {
  int level = 0;
  int64_t width = 1;
};
BucketPlan PlanBuckets(int64_t steps, int64_t buckets);

// What a reader asks for.
struct MetricBucketQuery {
  bool train = true;
  bool validation = true;
  std::vector<std::string> names;  // empty: all
  int64_t from_step = 0;
  int64_t to_step = INT64_MAX;
  int64_t buckets = 1000;  // at most; one more where their alignment needs it

  bool Wants(MetricSplit split, const std::string& name) const;
};

// The whole buckets that hold the steps asked for, of a job whose newest point has step `newest`.
struct BucketRange {
  BucketPlan plan;
  int64_t first_step = 1;
  int64_t last_step = 0;
};
BucketRange RangeOf(const MetricBucketQuery& query, int64_t newest);

struct MetricBucket {
  MetricSplit split = MetricSplit::kTrain;
  std::string name;
  int64_t first_step = 0;  // of the bucket, whichever of its steps have values
  int64_t last_step = 0;
  MetricFold fold;
};

// A curve's roll-up has buckets of the range's width.
using MetricCurves = std::map<MetricBlock::Key, RollUp>;
std::vector<MetricBucket> BucketsOf(const MetricCurves& curves, const BucketRange& range);

}  // namespace trainyard
