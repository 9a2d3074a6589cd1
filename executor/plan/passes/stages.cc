#include "executor/plan/passes/stages.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "executor/plan/ops/op.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// By tensor: the parameter that it is, or is the copy of; else kNone.
std::vector<TensorId> ParametersOf(const Graph& graph, const CopyOfWeight& copies) {
  std::vector<TensorId> parameters(graph.tensors.size(), kNone);
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if (graph.tensors[i].kind == TensorKind::kParameter) parameters[i] = static_cast<TensorId>(i);
  }
  for (const auto& [parameter, copy] : copies) parameters[copy] = parameter;
  return parameters;
}

// The ops before which a graph can be cut.
std::vector<size_t> PlacesToCut(const Graph& graph, const std::vector<TensorId>& parameter_of) {
  // Of activations: the op that writes it first, and those that read it first and last.
  constexpr size_t kNever = ~size_t{0};
  struct Use {
    size_t written = kNever, first_read = kNever, last_read = 0;
  };
  std::vector<Use> uses(graph.tensors.size());
  std::vector<bool> seen(graph.tensors.size());
  std::vector<bool> begins(graph.ops.size());  // with an op that reads a parameter that none before
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    VisitOperands(graph.ops[i], [&](TensorId id, Access access) {
      if (const TensorId parameter = parameter_of[id]; parameter != kNone) {
        if (!seen[parameter]) begins[i] = true;
        seen[parameter] = true;
      }
      if (graph[id].kind != TensorKind::kActivation) return;
      if (access != Access::kRead) uses[id].written = std::min(uses[id].written, i);
      if (access == Access::kWrite) return;
      uses[id].first_read = std::min(uses[id].first_read, i);
      uses[id].last_read = i;
    });
  }
  // How many activations go on across each place, and how many of them were read before it.
  std::vector<int> across(graph.ops.size() + 1), read_before(graph.ops.size() + 1);
  for (const Use& use : uses) {
    if (use.written == kNever || use.first_read == kNever) continue;
    for (size_t i = use.written + 1; i <= use.last_read; ++i) {
      ++across[i];
      if (use.first_read < i) ++read_before[i];
    }
  }
  std::vector<size_t> places;
  for (size_t i = 1; i < graph.ops.size(); ++i) {
    if (begins[i] && across[i] == 1 && read_before[i] == 0) places.push_back(i);
  }
  return places;
}

// The first ops of all stages but the first: of `places` those that are nearest to equal shares.
std::vector<size_t> ChooseCuts(const std::vector<Op>& ops, const std::vector<size_t>& places,
                               int64_t stages) {
  std::vector<double> before(ops.size() + 1);  // FLOPs of the ops before each
  for (size_t i = 0; i < ops.size(); ++i) before[i + 1] = before[i] + Flops(ops[i]);
  std::vector<size_t> cuts;
  size_t next = 0;  // of places
  for (int64_t stage = 1; stage < stages; ++stage) {
    const double wanted = before.back() * static_cast<double>(stage) / static_cast<double>(stages);
    const size_t last = places.size() - static_cast<size_t>(stages - stage);  // leaves enough
    size_t best = next;
    for (size_t i = next; i <= last; ++i) {
      if (std::abs(before[places[i]] - wanted) < std::abs(before[places[best]] - wanted)) best = i;
    }
    cuts.push_back(places[best]);
    next = best + 1;
  }
  return cuts;
}

// The stage of each of the first `count` ops: that of the parameters that it reads, or else of the
// op before it.
std::vector<int64_t> StagesOfForward(const Graph& graph, const std::vector<TensorId>& parameter_of,
                                     size_t count) {
  std::vector<int64_t> stages;
  int64_t stage = 0;
  for (size_t i = 0; i < count; ++i) {
    VisitOperands(graph.ops[i], [&](TensorId id, Access) {
      if (parameter_of[id] != kNone) stage = std::max(stage, graph[parameter_of[id]].stage);
    });
    stages.push_back(stage);
  }
  return stages;
}

}  // namespace

absl::Status AssignStages(int64_t stages, const CopyOfWeight& copies, Graph& graph) {
  if (stages == 1) return absl::OkStatus();
  const std::vector<TensorId> parameter_of = ParametersOf(graph, copies);
  const std::vector<size_t> places = PlacesToCut(graph, parameter_of);
  if (static_cast<int64_t>(places.size()) < stages - 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec.parallel.layout.pipeline: ", stages,
        " stages are more than the model can be cut into; expected at most ", places.size() + 1));
  }
  const std::vector<size_t> cuts = ChooseCuts(graph.ops, places, stages);
  std::vector<bool> seen(graph.tensors.size());
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const auto stage = std::upper_bound(cuts.begin(), cuts.end(), i) - cuts.begin();
    VisitOperands(graph.ops[i], [&](TensorId id, Access) {
      const TensorId parameter = parameter_of[id];
      if (parameter == kNone) return;
      TY_CHECK(!seen[parameter] || graph[parameter].stage == stage, graph[parameter].name,
               " is read by stages ", graph[parameter].stage, " and ", stage);
      seen[parameter] = true;
      graph.tensors[parameter].stage = stage;
    });
  }
  return absl::OkStatus();
}

HostedStage HostStage(const ShardHost& host, const CopyOfWeight& copies, const StagedGraph& staged,
                      Graph& graph) {
  HostedStage hosted{.forward = staged.forward};
  if (host.stages == 1) return hosted;
  const std::vector<TensorId> parameter_of = ParametersOf(graph, copies);
  std::vector<int64_t> stage_of = StagesOfForward(graph, parameter_of, staged.forward);
  const std::vector<int64_t> of_forward = stage_of;
  stage_of.resize(staged.forward + staged.loss, host.stages - 1);
  for (const size_t op : staged.gradient_of) stage_of.push_back(of_forward[op]);
  TY_CHECK(stage_of.size() == graph.ops.size(), stage_of.size(), " of ", graph.ops.size(), " ops");

  constexpr int64_t kNobody = -1;
  std::vector<int64_t> writer(graph.tensors.size(), kNobody);  // by activation: the last stage
  const auto link = [&](TensorId& place, TensorId id) {
    TY_CHECK(place == kNone || place == id, graph[id].name, " and ", graph[place].name,
             " go the same way between two stages");
    place = id;
  };
  const int64_t mine = host.stage();
  std::vector<Op> kept;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const int64_t stage = stage_of[i];
    VisitOperands(graph.ops[i], [&](TensorId id, Access access) {
      if (graph[id].kind != TensorKind::kActivation && graph[id].kind != TensorKind::kReceived) {
        return;
      }
      // What is received may be added to, and go on to the next stage.
      const int64_t from = writer[id] == kNobody ? stage : writer[id];
      if (writer[id] == kNobody || access != Access::kRead) writer[id] = stage;
      if (from == stage) return;
      TY_CHECK(access != Access::kWrite && std::abs(from - stage) == 1, "stage ", stage,
               " touches ", graph[id].name, ", which stage ", from, " makes");
      const bool onward = from < stage;
      if (from == mine) link(onward ? hosted.links.to_after : hosted.links.to_before, id);
      if (stage != mine) return;
      link(onward ? hosted.links.from_before : hosted.links.from_after, id);
      graph.tensors[id].kind = TensorKind::kReceived;
    });
    if (stage == mine) {
      kept.push_back(std::move(graph.ops[i]));
    } else {
      hosted.flops_elsewhere += Flops(graph.ops[i]);
    }
    if (i + 1 == staged.forward) hosted.forward = kept.size();
  }
  graph.ops = std::move(kept);
  const StageLinks& links = hosted.links;
  if (links.from_before != kNone) {
    // It is received before all ops, and its memory is its own from the first one on that reads it.
    bool first_reads = false;
    VisitOperands(graph.ops.front(),
                  [&](TensorId id, Access) { first_reads |= id == links.from_before; });
    TY_CHECK(first_reads, "the first op of stage ", mine, " reads no ",
             graph[links.from_before].name);
    graph.tensors[links.from_before].made_by = host.rank - host.in_stage();
  }
  if (links.to_after != kNone) graph.tensors[links.to_after].made_by = host.rank;
  if (links.from_after != kNone) {
    // It is received before the backward pass, which may begin with ops of other passes.
    const auto backward = graph.ops.begin() + static_cast<std::ptrdiff_t>(hosted.forward);
    graph.ops.insert(backward, Arrive{.x = links.from_after});
  }
  return hosted;
}

void AddStageExchanges(const StageLinks& links, const std::vector<TensorId>& results, Plan& plan) {
  const ShardHost& host = plan.host;
  if (host.stages == 1) return;
  std::vector<ShardExchange>& exchanges = plan.evaluate_exchanges;
  const auto end = static_cast<int64_t>(plan.evaluate.size());
  const int64_t apart = host.in_stage();
  if (links.from_before != kNone) {
    exchanges.insert(exchanges.begin(), {0, {links.from_before}, {host.rank - apart, host.rank}});
  }
  if (links.to_after != kNone) {
    exchanges.push_back({end, {links.to_after}, {host.rank, host.rank + apart}});
  }
  exchanges.push_back({end, results});
}

absl::Status CheckStagesTrain(const Graph& graph, const Plan& plan) {
  std::vector<bool> trains(plan.host.stages);
  for (size_t i = 0; i < plan.trained_of_group; ++i) trains[graph[plan.of_group[i]].stage] = true;
  const auto idle = std::find(trains.begin(), trains.end(), false);
  if (idle == trains.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "spec.optimizer.groups: of the ", plan.host.stages,
      " stages of spec.parallel.layout.pipeline number ", idle - trains.begin() + 1,
      " has frozen parameters alone; expected some to train in each: use fewer stages"));
}

}  // namespace trainyard::plan
