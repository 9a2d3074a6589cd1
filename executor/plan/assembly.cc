#include "executor/plan/assembly.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/cost/cost.h"
#include "executor/plan/families/families.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/graph_builder.h"
#include "executor/plan/graph/pipeline.h"
#include "executor/plan/graph/shard_builder.h"
#include "executor/plan/loss.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/ops/gradient.h"
#include "executor/plan/passes/align_rows.h"
#include "executor/plan/passes/cast_in_step.h"
#include "executor/plan/passes/host_shards.h"
#include "executor/plan/passes/layout.h"
#include "executor/plan/passes/logical_ranks.h"
#include "executor/plan/passes/lora.h"
#include "executor/plan/passes/narrow_gradients.h"
#include "executor/plan/passes/optimizer_step.h"
#include "executor/plan/passes/parameter_rules.h"
#include "executor/plan/passes/pending_buffers.h"
#include "executor/plan/passes/precision.h"
#include "executor/plan/passes/recompute.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "executor/plan/passes/shard_parameters.h"
#include "executor/plan/passes/share_gradients.h"
#include "executor/plan/passes/share_rows.h"
#include "executor/plan/passes/share_tables.h"
#include "executor/plan/passes/stages.h"
#include "executor/plan/passes/weight_copies.h"
#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "kernels/step_state.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kStepStateBytes = sizeof(kernels::StepState);

ElementType TypeOf(v1::Precision::Compute compute) {
  switch (compute) {
    case v1::Precision::BF16:
      return ElementType::kBF16;
    case v1::Precision::FP16:
      return ElementType::kF16;
    default:
      return ElementType::kF32;
  }
}

// Puts a plan together part by part; Finish hands it out.
class Assembly {
 public:
  Assembly(const v1::JobSpec& spec, const DataFacts& facts, int64_t rank = 0)
      : spec_(spec), facts_(facts), mesh_(MeshOf(spec)), type_(TypeOf(spec.precision().compute())) {
    plan_.rank = mesh_.group_of(rank);
    plan_.host = {.rank = mesh_.place_in_group(rank),
                  .ranks = mesh_.in_group(),
                  .stages = mesh_.pipeline,
                  .chunks = mesh_.chunks};
    plan_.logical_ranks = std::max(1, spec.parallel().logical_ranks());
    plan_.state = Scalar("step_state", ElementType::kU8, kStepStateBytes);
  }

  absl::Status AddTraining() {
    const v1::Training& training = spec_.training();
    plan_.micro_batch = training.micro_batch_size();
    plan_.micro_batches = training.batch_size() / plan_.logical_ranks / training.micro_batch_size();
    plan_.loss_scaling = type_ == ElementType::kF16;
    plan_.loss_sum = Scalar("loss_sum", ElementType::kF64, 1, TensorKind::kSum);
    if (training.z_loss() > 0) {
      plan_.z_loss_sum = Scalar("z_loss_sum", ElementType::kF64, 1, TensorKind::kSum);
    }
    plan_.target_count = Scalar("target_count", ElementType::kF64, 1, TensorKind::kSum);
    plan_.grad_norm = Scalar("grad_norm", ElementType::kF32, 1);
    norm_sum_ = Scalar("norm_sum", ElementType::kF64, 1);
    plan_.grad_scale = Scalar("grad_scale", ElementType::kF32, 1);

    GraphBuilder builder(graph_, plan_.micro_batch, /*training=*/true, plan_.state, tensor(),
                         uses_apart());
    TY_ASSIGN_OR_RETURN(Forward forward, BuildForward(spec_, facts_, builder));
    Adaptation adaptation;
    if (spec_.fine_tune().has_lora()) {
      TY_ASSIGN_OR_RETURN(adaptation, ChooseAdapters(spec_, forward.logits, graph_, builder));
      plan_.adapters = adaptation.adapters;
      ApplyAdapters(plan_.adapters, spec_.fine_tune().lora().dropout(), builder, graph_);
    }
    // Rules look at how weights are used, not their copies.
    TY_ASSIGN_OR_RETURN(
        const std::vector<ParameterRule> rules,
        RulesOf(spec_, graph_, AllOf(TensorKind::kParameter), forward.logits, adaptation.frozen));
    // One logit is no burden, and its bits decide about ties.
    SetPrecision(forward.binary ? ElementType::kF32 : type_, forward);
    if (OnGpuAlone(spec_) && forward.logits != kNone) AlignLogits(forward.logits, graph_);
    const int64_t rows = plan_.micro_batch * forward.rows_per_sample;
    plan_.input = forward.input;
    plan_.ids = forward.ids;
    plan_.target = builder.Input("target", ElementType::kI32, {rows});
    const TensorId losses = builder.Activation("losses", {rows});
    const LogitGradients dlogits = AddLogitGradients(forward, rows, builder, graph_);
    TY_RETURN_IF_ERROR(builder.status());

    TY_RETURN_IF_ERROR(AssignPieces(plan_.host.pipeline(), copies_, graph_));
    TY_RETURN_IF_ERROR(OrderTrained(forward, rules));
    AddGradientTensors();
    AddOptimizerState();
    AddLossAndBackward(dlogits, TrainingLossOf(spec_, plan_, forward, losses, dlogits, builder));
    plan_.micro = std::move(graph_.ops);
    graph_.ops.clear();
    return absl::OkStatus();
  }

  absl::Status AddEvaluation(int64_t batch) {
    plan_.evaluation_batch = batch;
    GraphBuilder builder(graph_, batch, /*training=*/false, plan_.state, tensor(), uses_apart());
    TY_ASSIGN_OR_RETURN(Forward forward, BuildForward(spec_, facts_, builder));
    ApplyAdapters(plan_.adapters, /*dropout=*/0, builder, graph_);
    SetPrecision(ElementType::kF32, forward);
    if (OnGpuAlone(spec_) && forward.logits != kNone) AlignLogits(forward.logits, graph_);
    const int64_t rows = batch * forward.rows_per_sample;
    plan_.rows_per_sample = forward.rows_per_sample;
    plan_.tokens = ContextOf(spec_.model()) > 0;
    plan_.binary = forward.binary;
    plan_.eval_input = forward.input;
    plan_.eval_ids = forward.ids;
    plan_.eval_target = builder.Input("eval_target", ElementType::kI32, {rows});
    plan_.eval_losses = builder.Activation("eval_losses", {rows});
    plan_.eval_correct = builder.Activation("eval_correct", {rows});
    plan_.eval_logits = forward.logits;
    TY_RETURN_IF_ERROR(builder.status());
    const std::vector<Op> loss = LossOf(forward,
                                        {.rows = rows,
                                         .targets = plan_.eval_target,
                                         .losses = plan_.eval_losses,
                                         .correct = plan_.eval_correct},
                                        builder);
    const size_t forward_ops = graph_.ops.size();
    graph_.ops.insert(graph_.ops.end(), loss.begin(), loss.end());
    evaluate_links_ =
        HostStage(plan_.host, copies_, {.forward = forward_ops, .loss = loss.size()}, graph_).links;
    JoinCopies(graph_);
    if (shares_rows()) ShareRows(plan_.host, graph_.ops.size(), evaluate_links_, graph_);
    HostShards(plan_.host, {&copies_}, 0, graph_);
    plan_.evaluate = std::move(graph_.ops);
    graph_.ops.clear();
    if (plan_.host.stages > 1) SendResults();
    return absl::OkStatus();
  }

  // The ops around the micro-batches, then the memory of all, then the summary. Activations take at
  // most `activation_bytes` if that can be reached.
  Plan Finish(int64_t total_steps, bool training, int64_t activation_bytes = kUnbounded) {
    plan_.total_steps = total_steps;
    if (training) plan_.data_ranks = mesh_.data;
    plan_.buffers = AllOf(TensorKind::kBuffer);
    if (!training) {
      plan_.parameters = AllOf(TensorKind::kParameter);
      std::stable_partition(plan_.parameters.begin(), plan_.parameters.end(),
                            [&](TensorId id) { return copies_.contains(id); });
      PlaceCopies();
      plan_.trained = plan_.parameters.size();
      plan_.of_group = plan_.parameters;
      plan_.trained_of_group = plan_.trained;
    }
    plan_.tensors = std::move(graph_.tensors);
    AppendCopies(0, plan_.parameters.size(), plan_, plan_.copy);
    if (training) {
      if (mesh_.data > 1) ShareOut(spec_, trained_, mesh_.data, plan_.rank, plan_);
      AppendOptimizer(spec_, trained_, norm_sum_, plan_);
      forward_ops_ -= ReceiveLookUps(plan_);
      ReadInEvaluation(copies_, plan_);
      forward_ops_ += MovePendingBuffers(plan_);
    }
    PlaceUnread();
    if (mesh_.pipeline > 1) {
      plan_.backward_from = static_cast<int64_t>(forward_ops_);
      plan_.in_flight = MostInFlightOf(plan_.host.pipeline(), plan_.host.stage(),
                                       most_hosted() * plan_.micro_batches);
    }
    if (training) {
      if (activation_bytes < kUnbounded) {
        const double before = FlopsPerStep(plan_);
        RecomputeWithin(activation_bytes, scalars_, forward_ops_, plan_);
        v1::PassSummary& pass = *plan_.summary.mutable_passes()->rbegin();
        pass.set_added_flops(FlopsPerStep(plan_) - before);
      }
      ZeroSums();
      AddFolds(mesh_.data, trained_.dense, plan_);
    }
    LayOutSmallest(scalars_, step_copies_, forward_ops_, plan_);
    plan_.micro_exchanges = ShardExchanges(plan_.host, plan_.tensors, plan_.micro);
    plan_.evaluate_exchanges = ShardExchanges(plan_.host, plan_.tensors, plan_.evaluate);
    AddStageExchanges(evaluate_links_, {plan_.eval_losses, plan_.eval_correct}, plan_);
    FindFirstReads(plan_);
    plan_.micro_gathers = Gathers(plan_, plan_.micro);
    plan_.evaluate_gathers = Gathers(plan_, plan_.evaluate);
    Summarize(spec_, facts_, plan_);
    return std::move(plan_);
  }

 private:
  void SetPrecision(ElementType of_logits, Forward& forward) {
    if (type_ == ElementType::kF32) return;
    forward.logits = ApplyPrecision({.type = type_,
                                     .logits = forward.logits,
                                     .logits_of_shards = forward.logits_of_shards,
                                     .of_logits = of_logits},
                                    graph_, copies_);
  }

  // The most logical ranks that one rank hosts.
  int64_t most_hosted() const {
    return HostedBy(plan_.logical_ranks, mesh_.data, mesh_.data - 1).size();
  }
  int64_t tensor() const { return std::max(1, spec_.parallel().tensor()); }
  bool shares_rows() const { return spec_.parallel().layout().sequence(); }
  // A head and an embedding may be in different stages of a pipeline.
  bool uses_apart() const { return spec_.parallel().pipeline() > 1; }

  TensorId Scalar(const std::string& name, ElementType type, int64_t n,
                  TensorKind kind = TensorKind::kScalar) {
    const TensorId id = graph_.Add({.name = name, .type = type, .dims = {n}, .kind = kind});
    scalars_.push_back(id);
    return id;
  }

  TensorId AddCompanion(TensorId parameter, TensorKind kind, const std::string& suffix) {
    return graph_.Add({.name = absl::StrCat(graph_[parameter].name, suffix),
                       .dims = graph_[parameter].dims,
                       .kind = kind});
  }

  std::vector<TensorId> AllOf(TensorKind kind) const {
    std::vector<TensorId> ids;
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      if (graph_.tensors[i].kind == kind) ids.push_back(static_cast<TensorId>(i));
    }
    return ids;
  }

  // Puts the parameters in the order that TrainedParameters describes: by their rules, those in
  // order of their first appearance, of each those with a narrow gradient first, then those with a
  // copy, otherwise in the order of the forward pass.
  absl::Status OrderTrained(const Forward& forward, const std::vector<ParameterRule>& rules) {
    const std::vector<TensorId> all = AllOf(TensorKind::kParameter);
    absl::flat_hash_map<TensorId, ParameterRule> rule_of;
    for (size_t i = 0; i < all.size(); ++i) rule_of[all[i]] = rules[i];
    std::vector<ParameterRule> of_tables;
    for (const TensorId table : forward.tables) of_tables.push_back(rule_of[table]);
    TY_ASSIGN_OR_RETURN(const bool by_row,
                        HasRowSparseGradient(spec_.optimizer(), plan_.logical_ranks, graph_,
                                             forward.tables, of_tables));
    const auto kept = [&](TensorId id) {
      return by_row && absl::c_linear_search(forward.tables, id);
    };

    ChooseNarrowGradients(rule_of);
    const auto take = [&](auto&& wanted) {
      for (const int turn : {0, 1, 2}) {
        for (const TensorId id : all) {
          const int its = narrow_gradients_.contains(id) ? 0 : copies_.contains(id) ? 1 : 2;
          if (its != turn || !wanted(id)) continue;
          plan_.parameters.push_back(id);
          trained_.rules.push_back(rule_of[id]);
        }
      }
    };
    std::vector<ParameterRule> seen;
    for (const ParameterRule& rule : rules) {
      if (rule.frozen || absl::c_linear_search(seen, rule)) continue;
      seen.push_back(rule);
      take([&](TensorId id) { return rule_of[id] == rule && !kept(id); });
    }
    trained_.dense = plan_.parameters.size();
    take(kept);
    trained_.trained = plan_.parameters.size();
    take([&](TensorId id) { return rule_of[id].frozen; });
    KeepHosted();
    PlaceCopies();
    return CheckStagesTrain(graph_, plan_);
  }

  // The order is that of all, the memory is that of what this rank hosts.
  void KeepHosted() {
    plan_.of_group = std::move(plan_.parameters);
    plan_.parameters.clear();
    plan_.trained_of_group = trained_.trained;
    const TrainedParameters all = std::exchange(trained_, {});
    rules_of_group_ = all.rules;
    for (size_t i = 0; i < plan_.of_group.size(); ++i) {
      if (!plan_.host.hosts(graph_[plan_.of_group[i]])) continue;
      plan_.parameters.push_back(plan_.of_group[i]);
      trained_.rules.push_back(all.rules[i]);
      if (i < all.dense) ++trained_.dense;
      if (i < all.trained) ++trained_.trained;
    }
    plan_.trained = trained_.trained;
  }

  // In bf16, which has the range of fp32, where nothing is summed over micro-batches or ranks, by
  // optimizers that read it.
  void ChooseNarrowGradients(const absl::flat_hash_map<TensorId, ParameterRule>& rule_of) {
    if (type_ != ElementType::kBF16 || plan_.micro_batches * plan_.logical_ranks > 1) return;
    if (HasNormOfShards(spec_.parallel())) return;  // its leaves are of fp32
    for (const TensorId id : ReadByOneProduct(graph_, copies_)) {
      const ParameterRule& rule = rule_of.at(id);
      const bool read = rule.method == Method::kSgd || rule.method == Method::kAdamW;
      if (read && !rule.frozen) narrow_gradients_.insert(id);
    }
  }

  TensorId CopyOf(TensorId parameter) const {
    const auto found = copies_.find(parameter);
    return found == copies_.end() ? kNone : found->second;
  }

  void PlaceCopies() {
    // What is gathered for each micro-batch is cast by each. A pipeline has several in flight.
    int64_t readers = ShardsParameters(spec_, mesh_.data) ? 1 : plan_.micro_batches * most_hosted();
    if (mesh_.pipeline > 1) readers = std::max<int64_t>(readers, 2);
    WeightCopies placed =
        plan::PlaceCopies(spec_, graph_, plan_.parameters, trained_.dense, readers, copies_);
    plan_.copies = std::move(placed.kept);
    step_copies_ = std::move(placed.cast_in_step);
  }

  void AddGradientTensors() {
    const auto add = [&](TensorId id) {
      const TensorId gradient = AddCompanion(id, TensorKind::kGradient, ".grad");
      if (narrow_gradients_.contains(id)) graph_.tensors[gradient].type = type_;
      gradient_of_[id] = gradient;
      if (CopyOf(id) != kNone) gradient_of_[CopyOf(id)] = gradient;
      return gradient;
    };
    for (size_t i = 0; i < trained_.dense; ++i) plan_.gradients.push_back(add(plan_.parameters[i]));
    // Those of other ranks have no place, and what writes them is left out (HostShards).
    for (size_t i = 0; i < plan_.trained_of_group; ++i) {
      if (!plan_.host.hosts(graph_[plan_.of_group[i]])) add(plan_.of_group[i]);
    }
    if (trained_.dense < trained_.trained) AddRowGradient();
  }

  void AddOptimizerState() {
    for (const char* kind : {"momentum_buffer", "exp_avg", "exp_avg_sq"}) {
      const auto has = [&](const ParameterRule& rule) {
        return absl::c_linear_search(StateNames(spec_.optimizer(), rule), kind);
      };
      // Kinds are numbered alike on all ranks, also where none of a rank's parameters has one.
      std::vector<bool> has_state;
      for (const ParameterRule& rule : rules_of_group_) has_state.push_back(has(rule));
      if (!absl::c_linear_search(has_state, true)) continue;
      std::vector<TensorId> state;
      for (size_t i = 0; i < plan_.parameters.size(); ++i) {
        // What is sharded is cut later.
        const bool whole = i >= trained_.dense ? !SharesTables(spec_, trained_, mesh_.data)
                                               : !ShardsOptimizer(spec_, mesh_.data);
        state.push_back(has(trained_.rules[i]) && whole
                            ? AddCompanion(plan_.parameters[i], TensorKind::kOptimizerState,
                                           absl::StrCat(".", kind))
                            : kNone);
      }
      plan_.has_state.push_back(std::move(has_state));
      plan_.optimizer_state_names.push_back(kind);
      plan_.optimizer_state.push_back(std::move(state));
    }
    if (!spec_.training().has_ema_decay()) return;
    for (size_t i = 0; i < plan_.trained; ++i) {
      plan_.averages.push_back(AddCompanion(plan_.parameters[i], TensorKind::kAverage, ".ema"));
    }
  }

  void AddRowGradient() {
    const int64_t samples = plan_.micro_batch * plan_.micro_batches * plan_.logical_ranks;
    const auto tables = static_cast<int64_t>(trained_.trained - trained_.dense);
    const TensorId first = plan_.parameters[trained_.dense];
    plan_.row_gradient = graph_.Add({.name = "rows.grad",
                                     .dims = {samples, tables, graph_[first].dims[1]},
                                     .kind = TensorKind::kGradient});
    plan_.row_ids = graph_.Add({.name = "rows.ids",
                                .type = ElementType::kI32,
                                .dims = {samples, tables},
                                .kind = TensorKind::kGradient});
    rows_[first] = {.grad = plan_.row_gradient, .ids = plan_.row_ids, .state = plan_.state};
  }

  // The loss goes between the passes; the backward pass is derived from the forward ops alone.
  void AddLossAndBackward(const LogitGradients& dlogits, const std::vector<Op>& loss) {
    StagedGraph all = {.forward = graph_.ops.size(), .loss = loss.size()};
    all.gradient_of =
        AppendBackward(graph_, dlogits, gradient_of_, plan_.micro_batches > 1, rows_, tensor());
    graph_.ops.insert(graph_.ops.begin() + static_cast<int64_t>(all.forward), loss.begin(),
                      loss.end());
    const HostedStage stage = HostStage(plan_.host, copies_, all, graph_);
    forward_ops_ = stage.forward - JoinCopies(graph_);
    std::vector<StageLinks> links = stage.links;
    if (shares_rows()) forward_ops_ = ShareRows(plan_.host, forward_ops_, links, graph_);
    plan_.chunks.resize(links.size());
    for (size_t chunk = 0; chunk < links.size(); ++chunk) plan_.chunks[chunk].links = links[chunk];
    const HostedOps hosted =
        HostShards(plan_.host, {&copies_, &gradient_of_}, forward_ops_, graph_);
    forward_ops_ = hosted.first;
    plan_.flops_elsewhere = stage.flops_elsewhere + hosted.flops_elsewhere;
  }

  // What an evaluation finds in the last stage is for all.
  void SendResults() {
    plan_.eval_logits = kNone;
    for (const TensorId id : {plan_.eval_losses, plan_.eval_correct}) {
      graph_.tensors[id].kind = TensorKind::kScalar;
      graph_.tensors[id].made_by = plan_.host.ranks - plan_.host.in_stage();
      scalars_.push_back(id);
    }
  }

  // Inputs are uploaded, and so have a place, though no op of this rank reads them: lengths where
  // others host all heads, tokens where they host the whole vocabulary, held-out ids of tables.
  void PlaceUnread() {
    absl::flat_hash_set<TensorId> read;
    for (const std::vector<Op>* ops : {&plan_.micro, &plan_.evaluate}) {
      for (const Op& op : *ops) VisitOperands(op, [&](TensorId id, Access) { read.insert(id); });
    }
    for (const TensorId id : {plan_.input, plan_.ids, plan_.target, plan_.eval_input,
                              plan_.eval_ids, plan_.eval_target}) {
      if (id != kNone && !read.contains(id)) plan_.unread.push_back(id);
    }
  }

  // Zeroes what the micro-batches of a logical rank add to.
  void ZeroSums() {
    for (const TensorId sum : {plan_.loss_sum, plan_.z_loss_sum, plan_.target_count}) {
      if (sum != kNone) plan_.zero.push_back(Zero{.x = sum, .n = 1});
    }
    ZeroGradients(plan_);
  }

  const v1::JobSpec& spec_;
  const DataFacts& facts_;
  const Mesh mesh_;
  const ElementType type_;  // of what is computed
  Graph graph_;
  Plan plan_;
  std::vector<TensorId> scalars_;
  size_t forward_ops_ = 0;                  // of plan_.micro
  std::vector<StageLinks> evaluate_links_;  // by chunk
  TensorId norm_sum_ = kNone;
  CopyOfWeight copies_;                // in `type_`
  std::vector<StepCopy> step_copies_;  // of those, what a step casts for itself
  TrainedParameters trained_;
  std::vector<ParameterRule> rules_of_group_;       // by position in plan_.of_group
  absl::flat_hash_set<TensorId> narrow_gradients_;  // parameters whose gradient is of `type_`
  absl::flat_hash_map<TensorId, RowGradient> rows_;
  absl::flat_hash_map<TensorId, TensorId> gradient_of_;
};

}  // namespace

absl::StatusOr<Plan> Assemble(const v1::JobSpec& spec, const DataFacts& facts,
                              int64_t activation_bytes, int64_t rank) {
  TY_RETURN_IF_ERROR(CheckFacts(facts));
  TY_ASSIGN_OR_RETURN(const int64_t total_steps, TotalSteps(spec, facts));
  TY_RETURN_IF_ERROR(CheckScheduleFits(spec.schedule(), total_steps));
  Assembly assembly(spec, facts, rank);
  TY_RETURN_IF_ERROR(assembly.AddTraining());
  TY_RETURN_IF_ERROR(assembly.AddEvaluation(spec.evaluation().batch_size()));
  return assembly.Finish(total_steps, /*training=*/true, activation_bytes);
}

absl::StatusOr<Plan> AssembleInference(const v1::JobSpec& spec, const DataFacts& facts,
                                       int64_t batch) {
  TY_RETURN_IF_ERROR(CheckFacts(facts));
  if (batch < 1)
    return absl::InvalidArgumentError(absl::StrCat("batch: ", batch, " is not positive"));
  v1::JobSpec whole = spec;  // a checkpoint holds whole tensors, and nothing is trained
  whole.mutable_parallel()->set_tensor(1);
  whole.mutable_parallel()->set_pipeline(1);
  whole.mutable_parallel()->clear_layout();
  Assembly assembly(whole, facts);
  TY_RETURN_IF_ERROR(assembly.AddEvaluation(batch));
  return assembly.Finish(0, /*training=*/false);
}

}  // namespace trainyard::plan
