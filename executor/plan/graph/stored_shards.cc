#include "executor/plan/graph/stored_shards.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// The parts of `runs`, which lie one behind the other in a shard, that are within `wanted`.
struct PlacedRun {
  Run run;
  int64_t at = 0;  // where it begins in the shard
};
std::vector<PlacedRun> Within(const std::vector<Run>& runs, const Run& wanted) {
  std::vector<PlacedRun> found;
  int64_t at = 0;
  for (const Run& run : runs) {
    const Run common = {std::max(run.first, wanted.first), std::min(run.end, wanted.end)};
    if (common.size() > 0) found.push_back({common, at + common.first - run.first});
    at += run.size();
  }
  return found;
}

}  // namespace

int64_t BytesElsewhere(const Plan& plan) {
  const int64_t averages = plan.averages.empty() ? 0 : 1;
  int64_t bytes = 0;
  for (size_t i = 0; i < plan.of_group.size(); ++i) {
    const Tensor& parameter = plan.tensors[plan.of_group[i]];
    const bool trained = i < plan.trained_of_group, hosted = plan.host.hosts(parameter);
    if (!hosted) bytes += parameter.bytes() * (trained ? 1 + averages : 1);
    if (!trained || (hosted && !plan.state_by_parameter())) continue;
    for (const std::vector<bool>& of_kind : plan.has_state) {
      if (of_kind[i]) bytes += parameter.bytes();
    }
  }
  return bytes;
}

std::vector<DrawnRun> DrawnRuns(const Tensor& parameter) {
  if (!parameter.shard) return {{.n = parameter.elements()}};
  const ShardOf& shard = *parameter.shard;
  const int64_t all = shard.dims.size() > 1 ? shard.dims[1] : 1;
  const std::vector<Run> cols = shard.cols.empty() ? std::vector<Run>{{0, all}} : shard.cols;
  std::vector<DrawnRun> runs;
  int64_t offset = 0;
  for (const Run& rows : shard.rows) {
    for (int64_t row = rows.first; row < rows.end; ++row) {
      for (const Run& run : cols) {
        const int64_t first = row * all + run.first;
        const bool goes_on = !runs.empty() && runs.back().first + runs.back().n == first;
        if (goes_on) {
          runs.back().n += run.size();
        } else {
          runs.push_back({.offset = offset, .n = run.size(), .first = first});
        }
        offset += run.size();
      }
    }
  }
  return runs;
}

namespace {

std::vector<StoredInShards> StoredIn(const Plan& plan, bool divided_alone) {
  std::vector<StoredInShards> all;
  absl::flat_hash_map<std::string, size_t> number;
  for (size_t i = 0; i < plan.of_group.size(); ++i) {
    const Tensor& parameter = plan.tensors[plan.of_group[i]];
    if (divided_alone && !plan.host.Divides(parameter)) continue;
    TY_CHECK(!parameter.dims.empty() && parameter.dims[0] > 0, parameter.name, " has no rows");
    const ShardOf whole = {.rows = {{0, parameter.dims[0]}}};
    const ShardOf& shard = parameter.shard ? *parameter.shard : whole;
    const int64_t stride = parameter.elements() / parameter.dims[0];
    int64_t first = 0;  // row of the whole
    for (const StoredTensor& stored : Stored(parameter)) {
      const auto [found, added] = number.try_emplace(stored.name, all.size());
      if (added) all.push_back({.stored = {.name = stored.name, .dims = stored.dims}});
      StoredInShards& tensor = all[found->second];
      const std::vector<Run> cols =
          shard.cols.empty() ? std::vector<Run>{{0, tensor.cols()}} : shard.cols;
      for (const PlacedRun& row : Within(shard.rows, {first, first + stored.dims[0]})) {
        for (const PlacedRun& col : Within(cols, {0, tensor.cols()})) {
          tensor.pieces.push_back({.position = i,
                                   .row = row.run.first - first,
                                   .col = col.run.first,
                                   .rows = row.run.size(),
                                   .cols = col.run.size(),
                                   .offset = row.at * stride + col.at,
                                   .stride = stride});
        }
      }
      first += stored.dims[0];
    }
  }
  return all;
}

}  // namespace

std::vector<StoredInShards> StoredParameters(const Plan& plan) { return StoredIn(plan, false); }
std::vector<StoredInShards> StoredShards(const Plan& plan) { return StoredIn(plan, true); }

}  // namespace trainyard::plan
