#include "executor/plan/passes/share_tables.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/spec/mesh.h"

namespace trainyard::plan {

namespace {

// Of a table of `n` rows, in as many shares.
Run RowsOf(int64_t rank, int64_t n, int64_t shares) {
  const int64_t share = rank % shares;
  return {.first = n * share / shares, .end = n * (share + 1) / shares};
}

// A tensor for `rows` of `table`, or of what goes with it: of one row, which nothing reads, if
// there are none, since no tensor is empty.
Tensor TensorOfRows(const Tensor& table, const std::string& suffix, const Run& rows,
                    TensorKind kind) {
  return {.name = absl::StrCat(table.name, suffix, ", rows ", rows.first, " to ", rows.end),
          .dims = {std::max<int64_t>(1, rows.size()), table.dims[1]},
          .kind = kind};
}

// Takes the one look-up out of `ops`, if there is one.
LookUp TakeLookUp(std::vector<Op>& ops, std::vector<Tensor>& tensors) {
  LookUp look_up;
  std::erase_if(ops, [&](const Op& op) {
    const auto* const found = std::get_if<EmbeddingTablesForward>(&op);
    if (found == nullptr) return false;
    look_up = {.ids = found->ids, .rows = found->y, .was_before = &op - ops.data()};
    tensors[found->y].kind = TensorKind::kReceived;
    return true;
  });
  return look_up;
}

void FindFirstRead(const std::vector<Op>& ops, LookUp& look_up) {
  for (size_t i = 0; i < ops.size() && look_up.rows != kNone; ++i) {
    bool reads = false;
    VisitOperands(ops[i], [&](TensorId id, Access) { reads |= id == look_up.rows; });
    if (!reads) continue;
    look_up.read_first = static_cast<int64_t>(i);
    return;
  }
}

}  // namespace

bool SharesTables(const v1::JobSpec& spec, const TrainedParameters& parameters, int64_t ranks) {
  return parameters.dense > 0 && parameters.dense < parameters.trained &&
         ShardsParameters(spec, ranks);
}

void ShareTables(const v1::Optimizer& optimizer, const TrainedParameters& parameters, int64_t ranks,
                 int64_t rank, Plan& plan) {
  const int64_t shares = SlicesFor(ranks, plan.owners);
  const auto add = [&](Tensor tensor) -> TensorId {
    plan.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(plan.tensors.size()) - 1;
  };
  const std::vector<std::string> kinds =
      StateNames(optimizer, parameters.rules[parameters.dense]);  // they are treated alike
  std::vector<int64_t> bytes(shares);                             // of weights, by share
  for (size_t i = parameters.dense; i < parameters.trained; ++i) {
    const Tensor table = plan.tensors[plan.parameters[i]];
    const int64_t n = table.dims[0], width = table.dims[1];
    const int64_t begin = RunLength(plan, 0, i);
    Bucket bucket{.elements = {begin, begin + n * width}};
    for (int64_t r = 0; r < ranks; ++r) {
      const Run rows = RowsOf(r, n, shares);
      bucket.slices.push_back({begin + rows.first * width, begin + rows.end * width});
      if (r >= shares) continue;
      bytes[r] += Align(TensorOfRows(table, "", rows, TensorKind::kParameter).bytes());
    }
    const Run rows = RowsOf(rank, n, shares);
    OwnedRun owned{.elements = bucket.slices[rank]};
    for (const std::string& kind : plan.optimizer_state_names) {
      owned.state.push_back(
          absl::c_linear_search(kinds, kind)
              ? add(TensorOfRows(table, absl::StrCat(".", kind), rows, TensorKind::kOptimizerState))
              : kNone);
    }
    Tensor weights = TensorOfRows(table, "", rows, TensorKind::kParameter);
    weights.init_std = table.init_std;
    weights.init_value = table.init_value;
    ShardOf of_table{
        .whole = table.name, .dims = table.dims, .number = rank % shares, .count = shares};
    if (rows.size() > 0) of_table.rows.push_back(rows);
    weights.shard = std::make_shared<const ShardOf>(std::move(of_table));
    owned.weights = add(std::move(weights));
    plan.owned_rows.push_back(std::move(owned));
    plan.tables.push_back(std::move(bucket));
  }
  const int64_t most = *absl::c_max_element(bytes), all = absl::c_accumulate(bytes, int64_t{0});
  const auto state = static_cast<int64_t>(kinds.size());
  plan.most_weight_bytes += most;
  plan.all_weight_bytes += all;
  plan.most_optimizer_bytes += state * most;
  plan.all_optimizer_bytes += state * all;
}

size_t ReceiveLookUps(Plan& plan) {
  if (plan.tables.empty()) return 0;
  const size_t before = plan.micro.size();
  plan.micro_look_up = TakeLookUp(plan.micro, plan.tensors);
  plan.evaluate_look_up = TakeLookUp(plan.evaluate, plan.tensors);
  return before - plan.micro.size();
}

void FindFirstReads(Plan& plan) {
  FindFirstRead(plan.micro, plan.micro_look_up);
  FindFirstRead(plan.evaluate, plan.evaluate_look_up);
}

}  // namespace trainyard::plan
