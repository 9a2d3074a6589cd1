#include "executor/plan/passes/shard_parameters.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/passes/shard_gradients.h"

namespace trainyard::plan {

namespace {

// The parameters of each bucket, by their positions: a bucket has them whole.
std::vector<std::vector<size_t>> PositionsByBucket(const Plan& plan) {
  const std::vector<ElementRange> elements = ElementsOfGradients(plan, plan.gradients.size());
  std::vector<std::vector<size_t>> positions(plan.buckets.size());
  size_t bucket = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    while (plan.buckets[bucket].elements.end <= elements[i].first) ++bucket;
    positions[bucket].push_back(i);
  }
  return positions;
}

// The ops that read something of each bucket, in order.
std::vector<std::vector<int64_t>> ReadsByBucket(const Plan& plan, const std::vector<Op>& ops) {
  absl::flat_hash_map<TensorId, size_t> bucket_of;
  const std::vector<std::vector<size_t>> positions = PositionsByBucket(plan);
  for (size_t b = 0; b < positions.size(); ++b) {
    for (const size_t position : positions[b]) bucket_of[plan.parameters[position]] = b;
  }
  std::vector<std::vector<int64_t>> reads(positions.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto touch = [&](TensorId id, Access) {
      const auto found = bucket_of.find(id);
      if (found == bucket_of.end()) return;
      std::vector<int64_t>& of_bucket = reads[found->second];
      const auto op = static_cast<int64_t>(i);
      if (of_bucket.empty() || of_bucket.back() != op) of_bucket.push_back(op);
    };
    VisitOperands(ops[i], touch);
  }
  return reads;
}

// `reads` cut in two at the longest stretch of ops between them.
std::vector<OpRange> InTwo(const std::vector<int64_t>& reads) {
  size_t second = 0;  // the first read after that stretch
  for (size_t i = 1; i < reads.size(); ++i) {
    if (second == 0 || reads[i] - reads[i - 1] > reads[second] - reads[second - 1]) second = i;
  }
  if (second == 0) return {{reads.front(), reads.back()}};
  return {{reads.front(), reads[second - 1]}, {reads[second], reads.back()}};
}

// Puts the gathers in order and begins each with the ops that wait for the one before.
void Begin(std::vector<Gather>& gathers) {
  std::stable_sort(gathers.begin(), gathers.end(),
                   [](const Gather& a, const Gather& b) { return a.read.first < b.read.first; });
  int64_t before = 0, now = 0;  // the two last ops that wait
  for (Gather& gather : gathers) {
    if (gather.read.first > now) before = std::exchange(now, gather.read.first);
    gather.start_before = before;
  }
}

// Makes one of two gathers of a bucket whose memory is not free between them. Returns whether there
// were such.
bool Join(std::vector<Gather>& gathers) {
  absl::flat_hash_map<size_t, size_t> first;  // of each bucket, by bucket
  std::vector<Gather> joined;
  for (const Gather& gather : gathers) {
    const auto [found, is_first] = first.try_emplace(gather.bucket, joined.size());
    Gather &before = joined.emplace_back(gather), &one = joined[found->second];
    if (is_first || before.start_before > one.read.last) continue;
    one.read.last = before.read.last;
    joined.pop_back();
  }
  const bool any = joined.size() < gathers.size();
  gathers = std::move(joined);
  return any;
}

}  // namespace

std::vector<Gather> Gathers(const Plan& plan, const std::vector<Op>& ops) {
  std::vector<Gather> gathers;
  if (!plan.parameters_sharded) return gathers;
  const std::vector<std::vector<int64_t>> reads = ReadsByBucket(plan, ops);
  for (size_t b = 0; b < reads.size(); ++b) {
    if (reads[b].empty()) continue;
    for (const OpRange& read : InTwo(reads[b])) gathers.push_back({.bucket = b, .read = read});
  }
  do Begin(gathers);
  // Nobody waits for a gather that was joined to the one before, so that those behind it begin with
  // an earlier op, and may have to be joined in turn.
  while (Join(gathers));
  return gathers;
}

std::vector<TensorRun> ParameterRuns(const Plan& plan) {
  std::vector<TensorRun> runs;
  if (!plan.parameters_sharded) return runs;
  const std::vector<std::vector<size_t>> positions = PositionsByBucket(plan);
  runs.resize(positions.size());
  for (size_t b = 0; b < positions.size(); ++b) {
    for (const size_t position : positions[b]) {
      runs[b].tensors.push_back(plan.parameters[position]);
    }
  }
  for (const Gather& gather : Gathers(plan, plan.micro)) {
    TensorRun& run = runs[gather.bucket];
    (run.live.empty() ? run.live : run.again) = gather.live();
  }
  return runs;
}

std::vector<ReservedRange> GatheredIn(const Plan& plan, const std::vector<Op>& ops,
                                      const std::vector<int64_t>& offsets) {
  std::vector<ReservedRange> reserved;
  if (!plan.parameters_sharded) return reserved;
  const std::vector<std::vector<size_t>> positions = PositionsByBucket(plan);
  for (const Gather& gather : Gathers(plan, ops)) {
    const TensorId first = plan.parameters[positions[gather.bucket].front()];
    reserved.push_back(
        {.offset = offsets[first],
         .bytes = plan.buckets[gather.bucket].elements.size() * SizeOf(ElementType::kF32),
         .first = gather.live().first,
         .last = gather.live().last});
  }
  return reserved;
}

std::vector<TensorId> GatheredWith(const Plan& plan, size_t bucket) {
  std::vector<TensorId> parameters;
  const std::vector<std::vector<size_t>> positions = PositionsByBucket(plan);
  for (const size_t position : positions[bucket]) {
    parameters.push_back(plan.parameters[position]);
  }
  return parameters;
}

Region GatheredRegionOf(const Plan& plan, size_t bucket) {
  return {.offset = plan.offsets[GatheredWith(plan, bucket).front()],
          .bytes = plan.buckets[bucket].elements.size() * SizeOf(ElementType::kF32)};
}

}  // namespace trainyard::plan
