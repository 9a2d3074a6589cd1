#include "executor/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/cost.h"
#include "executor/plan/families/families.h"
#include "executor/plan/gradient.h"
#include "executor/plan/graph_builder.h"
#include "executor/plan/memory.h"
#include "executor/plan/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kStepStateBytes = 32;         // kernels::StepState
constexpr double kLargestSteps = 4294967295.0;  // counters of random draws wrap past it

absl::Status CheckFacts(const DataFacts& facts) {
  if (facts.kind == DataFacts::Kind::kTokens || facts.kind == DataFacts::Kind::kDocuments) {
    if (facts.vocab > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "spec.data: the number of tokens in the vocabulary is unknown");
  }
  if (facts.kind == DataFacts::Kind::kClicks) {
    if (facts.dense > 0 && facts.categorical > 0 && facts.buckets > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("spec.data: clicks with ", facts.dense, " dense and ", facts.categorical,
                     " categorical features of ", facts.buckets, " values cannot be trained on"));
  }
  if (facts.height > 0 && facts.width > 0 && facts.channels > 0 && facts.classes > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("spec.data: images of ", facts.height, "x",
                                                 facts.width, "x", facts.channels, " with ",
                                                 facts.classes, " classes cannot be trained on"));
}

// Steps given, or as many as go over the data `epochs` times.
absl::StatusOr<int64_t> TotalSteps(const v1::JobSpec& spec, const DataFacts& facts) {
  if (spec.training().steps() > 0) return spec.training().steps();
  if (facts.train_size <= 0) {
    return absl::InvalidArgumentError(
        "spec.training.epochs: the size of the data is unknown here; set spec.training.steps");
  }
  double samples = static_cast<double>(facts.train_size);
  if (facts.kind == DataFacts::Kind::kTokens) samples /= ContextOf(spec.model());
  const double steps =
      std::max(1.0, std::ceil(spec.training().epochs() * samples / spec.training().batch_size()));
  if (steps > kLargestSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.training.epochs: ", spec.training().epochs(), " makes ", steps,
                     " steps; at most ", kLargestSteps));
  }
  return static_cast<int64_t>(steps);
}

absl::Status CheckSchedule(const v1::Schedule& schedule, int64_t total_steps) {
  if (schedule.shape() == v1::Schedule::CONSTANT) return absl::OkStatus();
  const int64_t decay = schedule.decay_steps() > 0 ? schedule.decay_steps() : total_steps;
  if (schedule.warmup_steps() < decay) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("spec.schedule.warmup_steps: ", schedule.warmup_steps(),
                   " leaves nothing of the ", decay, " steps to decay over; make it smaller"));
}

// Whether rows of a table that have no gradient stay as they are: only the others need be touched.
bool TouchesRowsOnly(const v1::Optimizer& optimizer) {
  if (optimizer.has_adamw()) return optimizer.adamw().lazy_tables();
  return optimizer.has_sgd() && optimizer.sgd().momentum() == 0 &&
         optimizer.sgd().weight_decay() == 0;
}

// Puts a plan together part by part; Finish hands it out.
class Assembly {
 public:
  Assembly(const v1::JobSpec& spec, const DataFacts& facts) : spec_(spec), facts_(facts) {
    plan_.state = Scalar("step_state", ElementType::kU8, kStepStateBytes);
  }

  absl::Status AddTraining() {
    const v1::Training& training = spec_.training();
    plan_.micro_batch = training.micro_batch_size();
    plan_.micro_batches = training.batch_size() / ranks() / training.micro_batch_size();
    plan_.loss_sum = Scalar("loss_sum", ElementType::kF64, 1);
    plan_.grad_norm = Scalar("grad_norm", ElementType::kF32, 1);
    norm_sum_ = Scalar("norm_sum", ElementType::kF64, 1);
    clip_scale_ = Scalar("clip_scale", ElementType::kF32, 1);

    GraphBuilder builder(graph_, plan_.micro_batch, /*training=*/true, plan_.state);
    TY_ASSIGN_OR_RETURN(const Forward forward, BuildForward(spec_.model(), facts_, builder));
    const int64_t rows = plan_.micro_batch * forward.rows_per_sample;
    plan_.input = forward.input;
    plan_.ids = forward.ids;
    plan_.target = builder.Input("target", ElementType::kI32, {rows});
    const TensorId losses = builder.Activation("losses", {rows});
    const TensorId dlogits = builder.Activation("d(logits)", {rows, forward.classes});
    TY_RETURN_IF_ERROR(builder.status());

    if (TouchesRowsOnly(spec_.optimizer())) by_row_ = forward.tables;
    AddGradientTensors();
    const int64_t global_rows = training.batch_size() * forward.rows_per_sample;
    std::vector<Op> loss = {LossOp(forward, rows, plan_.target, losses, /*correct=*/kNone, dlogits,
                                   1.0f / static_cast<float>(global_rows)),
                            Sum{.x = losses, .sum = plan_.loss_sum, .n = rows, .accumulate = true}};
    AddLossAndBackward(forward.logits, dlogits, std::move(loss));
    plan_.micro = std::move(graph_.ops);
    graph_.ops.clear();
    return absl::OkStatus();
  }

  absl::Status AddEvaluation(int64_t batch) {
    plan_.evaluation_batch = batch;
    GraphBuilder builder(graph_, batch, /*training=*/false, plan_.state);
    TY_ASSIGN_OR_RETURN(const Forward forward, BuildForward(spec_.model(), facts_, builder));
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
    graph_.ops.push_back(LossOp(forward, rows, plan_.eval_target, plan_.eval_losses,
                                plan_.eval_correct, /*dlogits=*/kNone, 1));
    plan_.evaluate = std::move(graph_.ops);
    graph_.ops.clear();
    return absl::OkStatus();
  }

  // Memory, then the ops that sweep whole regions of it, then the summary.
  Plan Finish(int64_t total_steps, bool training) {
    plan_.total_steps = total_steps;
    OrderParameters();
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      if (graph_.tensors[i].kind == TensorKind::kBuffer) {
        plan_.buffers.push_back(static_cast<TensorId>(i));
      }
    }
    plan_.tensors = std::move(graph_.tensors);
    LayOut();
    if (training) {
      AddBegin();
      AddEnd();
    }
    Summarize(spec_, facts_, ranks(), plan_);
    return std::move(plan_);
  }

 private:
  static Op LossOp(const Forward& forward, int64_t rows, TensorId targets, TensorId losses,
                   TensorId correct, TensorId dlogits, float scale) {
    if (forward.binary) {
      return BinaryCrossEntropy{.logits = forward.logits,
                                .targets = targets,
                                .losses = losses,
                                .correct = correct,
                                .dlogits = dlogits,
                                .rows = rows,
                                .scale = scale};
    }
    return CrossEntropy{.logits = forward.logits,
                        .targets = targets,
                        .losses = losses,
                        .correct = correct,
                        .dlogits = dlogits,
                        .rows = rows,
                        .classes = forward.classes,
                        .scale = scale};
  }

  int64_t ranks() const { return spec_.parallel().logical_ranks(); }

  TensorId Scalar(const std::string& name, ElementType type, int64_t n) {
    const TensorId id =
        graph_.Add({.name = name, .type = type, .dims = {n}, .kind = TensorKind::kScalar});
    scalars_.push_back(id);
    return id;
  }

  TensorId AddCompanion(TensorId parameter, TensorKind kind, const std::string& suffix) {
    return graph_.Add({.name = absl::StrCat(graph_[parameter].name, suffix),
                       .dims = graph_[parameter].dims,
                       .kind = kind});
  }

  // Decayed parameters (two or more dimensions) first, tables kept by row last, otherwise in the
  // order of the forward pass.
  void OrderParameters() {
    if (!plan_.parameters.empty()) return;
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      if (graph_.tensors[i].kind == TensorKind::kParameter) {
        plan_.parameters.push_back(static_cast<TensorId>(i));
      }
    }
    const auto first_by_row =
        std::stable_partition(plan_.parameters.begin(), plan_.parameters.end(),
                              [&](TensorId id) { return !absl::c_linear_search(by_row_, id); });
    const auto first_plain =
        std::stable_partition(plan_.parameters.begin(), first_by_row,
                              [&](TensorId id) { return graph_[id].dims.size() >= 2; });
    decayed_ = first_plain - plan_.parameters.begin();
    swept_ = first_by_row - plan_.parameters.begin();
  }

  void AddGradientTensors() {
    OrderParameters();
    for (size_t i = 0; i < swept_; ++i) {
      const TensorId id = plan_.parameters[i];
      plan_.gradients.push_back(AddCompanion(id, TensorKind::kGradient, ".grad"));
      gradient_of_[id] = plan_.gradients.back();
    }
    if (!by_row_.empty()) AddRowGradient();
    if (spec_.optimizer().has_adamw()) {
      plan_.optimizer_state_names = {"exp_avg", "exp_avg_sq"};
    } else if (spec_.optimizer().sgd().momentum() > 0) {
      plan_.optimizer_state_names = {"momentum_buffer"};
    }
    for (const std::string& name : plan_.optimizer_state_names) {
      plan_.optimizer_state.emplace_back();
      for (const TensorId id : plan_.parameters) {
        plan_.optimizer_state.back().push_back(
            AddCompanion(id, TensorKind::kOptimizerState, absl::StrCat(".", name)));
      }
    }
  }

  void AddRowGradient() {
    const int64_t samples = plan_.micro_batch * plan_.micro_batches;
    const auto tables = static_cast<int64_t>(by_row_.size());
    plan_.row_gradient = graph_.Add({.name = "rows.grad",
                                     .dims = {samples, tables, graph_[by_row_[0]].dims[1]},
                                     .kind = TensorKind::kGradient});
    plan_.row_ids = graph_.Add({.name = "rows.ids",
                                .type = ElementType::kI32,
                                .dims = {samples, tables},
                                .kind = TensorKind::kGradient});
    rows_[by_row_[0]] = {.grad = plan_.row_gradient, .ids = plan_.row_ids, .state = plan_.state};
  }

  // The loss goes between the passes; the backward pass is derived from the forward ops alone.
  void AddLossAndBackward(TensorId logits, TensorId dlogits, std::vector<Op> loss) {
    const size_t forward_ops = graph_.ops.size();
    AppendBackward(graph_, {{logits, dlogits}}, gradient_of_, plan_.micro_batches > 1, rows_);
    graph_.ops.insert(graph_.ops.begin() + forward_ops, loss.begin(), loss.end());
  }

  // Region after region. Activations of training and evaluation take turns in the last one.
  void LayOut() {
    plan_.offsets.assign(plan_.tensors.size(), 0);
    int64_t end = 0;
    const auto place = [&](const std::vector<TensorId>& ids) {
      end = PlaceInOrder(plan_.tensors, ids, end, plan_.offsets);
    };
    const auto region = [&](auto&& fill) {
      const int64_t begin = end;
      fill();
      return Region{.offset = begin, .bytes = end - begin};
    };
    plan_.parameter_region = region([&] { place(plan_.parameters); });
    plan_.gradient_region = region([&] {
      place(plan_.gradients);
      if (!by_row_.empty()) place({plan_.row_gradient, plan_.row_ids});
    });
    plan_.optimizer_region = region([&] {
      for (const std::vector<TensorId>& kind : plan_.optimizer_state) place(kind);
    });
    plan_.buffer_region = region([&] { place(plan_.buffers); });
    plan_.scalar_region = region([&] { place(scalars_); });
    plan_.activation_region = region([&] {
      const int64_t begin = end;
      std::vector<int64_t> within(plan_.tensors.size(), -1);
      const int64_t micro = PackActivations(plan_.tensors, plan_.micro, {}, within);
      const int64_t evaluate =
          PackActivations(plan_.tensors, plan_.evaluate,
                          {plan_.eval_logits, plan_.eval_losses, plan_.eval_correct}, within);
      for (size_t i = 0; i < within.size(); ++i) {
        if (within[i] >= 0) plan_.offsets[i] = begin + within[i];
      }
      end += std::max(micro, evaluate);
    });
    plan_.arena_bytes = end;
  }

  // Zeroes the loss and the gradients whose first touch in `micro` adds to them; neighbours in one
  // go.
  void AddBegin() {
    plan_.begin.push_back(Zero{.x = plan_.loss_sum, .n = 1});
    std::vector<bool> seen(plan_.tensors.size()), added_first(plan_.tensors.size());
    for (Op& op : plan_.micro) {
      std::visit(
          [&](auto& o) {
            o.Visit([&](TensorId id, Access access) {
              if (!seen[id]) added_first[id] = access != Access::kWrite;
              seen[id] = true;
            });
          },
          op);
    }
    for (size_t i = 0; i < plan_.gradients.size();) {
      size_t end = i;
      while (end < plan_.gradients.size() && added_first[plan_.gradients[end]]) ++end;
      if (end > i) plan_.begin.push_back(Zero{.x = plan_.gradients[i], .n = RunLength(i, end)});
      i = std::max(end, i + 1);
    }
  }

  // Elements from the start of parameter `first` to the start of parameter `end`, padding included.
  // The same for gradients and optimizer state.
  int64_t RunLength(size_t first, size_t end) const {
    int64_t bytes = 0;
    for (size_t i = first; i < end; ++i) bytes += Align(plan_.tensors[plan_.parameters[i]].bytes());
    return bytes / SizeOf(ElementType::kF32);
  }

  void AddEnd() {
    const bool clips = spec_.optimizer().has_clip_norm();
    plan_.end.push_back(
        SquaredNorm{.x = plan_.gradients[0], .sum = norm_sum_, .n = RunLength(0, swept_)});
    if (!by_row_.empty()) AddRowNorm();
    plan_.end.push_back(
        ClipScale{.sum = norm_sum_,
                  .norm = plan_.grad_norm,
                  .scale = clip_scale_,
                  .max_norm = clips ? static_cast<float>(spec_.optimizer().clip_norm())
                                    : std::numeric_limits<float>::infinity()});
    const TensorId scale = clips ? clip_scale_ : kNone;
    if (spec_.optimizer().has_sgd()) {
      AddSgd(scale);
    } else {
      AddAdamW(0, decayed_, spec_.optimizer().adamw().weight_decay(), scale);
      AddAdamW(decayed_, swept_, 0, scale);
    }
    if (!by_row_.empty()) AddRowStep(scale);
  }

  // Distinct rows, so that the norm is that of the whole gradient.
  void AddRowNorm() {
    const std::vector<int64_t>& dims = plan_.tensors[plan_.row_gradient].dims;
    plan_.end.push_back(MergeRows{.grad = plan_.row_gradient,
                                  .ids = plan_.row_ids,
                                  .samples = dims[0],
                                  .count = dims[1],
                                  .width = dims[2]});
    plan_.end.push_back(SquaredNorm{.x = plan_.row_gradient,
                                    .sum = norm_sum_,
                                    .n = plan_.tensors[plan_.row_gradient].elements(),
                                    .accumulate = true});
  }

  void AddRowStep(TensorId scale) {
    const std::vector<int64_t>& dims = plan_.tensors[plan_.row_gradient].dims;
    if (spec_.optimizer().has_sgd()) {
      plan_.end.push_back(SgdRows{.grad = plan_.row_gradient,
                                  .ids = plan_.row_ids,
                                  .grad_scale = scale,
                                  .state = plan_.state,
                                  .tables = by_row_,
                                  .samples = dims[0],
                                  .width = dims[2]});
      return;
    }
    const v1::AdamW& adamw = spec_.optimizer().adamw();
    const auto of_tables = [&](const std::vector<TensorId>& state) {
      return std::vector<TensorId>(state.begin() + swept_, state.end());
    };
    plan_.end.push_back(AdamWRows{.grad = plan_.row_gradient,
                                  .ids = plan_.row_ids,
                                  .grad_scale = scale,
                                  .state = plan_.state,
                                  .tables = by_row_,
                                  .m = of_tables(plan_.optimizer_state[0]),
                                  .v = of_tables(plan_.optimizer_state[1]),
                                  .samples = dims[0],
                                  .width = dims[2],
                                  .beta1 = static_cast<float>(adamw.beta1()),
                                  .beta2 = static_cast<float>(adamw.beta2()),
                                  .epsilon = static_cast<float>(adamw.epsilon()),
                                  .weight_decay = static_cast<float>(adamw.weight_decay())});
  }

  void AddSgd(TensorId scale) {
    const v1::Sgd& sgd = spec_.optimizer().sgd();
    plan_.end.push_back(
        SgdStep{.w = plan_.parameters[0],
                .grad = plan_.gradients[0],
                .velocity = sgd.momentum() > 0 ? plan_.optimizer_state[0][0] : kNone,
                .grad_scale = scale,
                .state = plan_.state,
                .n = RunLength(0, swept_),
                .momentum = static_cast<float>(sgd.momentum()),
                .weight_decay = static_cast<float>(sgd.weight_decay())});
  }

  void AddAdamW(size_t first, size_t end, double weight_decay, TensorId scale) {
    if (first == end) return;
    const v1::AdamW& adamw = spec_.optimizer().adamw();
    plan_.end.push_back(AdamWStep{.w = plan_.parameters[first],
                                  .grad = plan_.gradients[first],
                                  .m = plan_.optimizer_state[0][first],
                                  .v = plan_.optimizer_state[1][first],
                                  .grad_scale = scale,
                                  .state = plan_.state,
                                  .n = RunLength(first, end),
                                  .beta1 = static_cast<float>(adamw.beta1()),
                                  .beta2 = static_cast<float>(adamw.beta2()),
                                  .epsilon = static_cast<float>(adamw.epsilon()),
                                  .weight_decay = static_cast<float>(weight_decay)});
  }

  const v1::JobSpec& spec_;
  const DataFacts& facts_;
  Graph graph_;
  Plan plan_;
  std::vector<TensorId> scalars_;
  TensorId norm_sum_ = kNone, clip_scale_ = kNone;
  size_t decayed_ = 0;  // parameters before this one are decayed
  size_t swept_ = 0;    // parameters from this one on are tables kept by row
  std::vector<TensorId> by_row_;
  absl::flat_hash_map<TensorId, RowGradient> rows_;
  absl::flat_hash_map<TensorId, TensorId> gradient_of_;
};

}  // namespace

absl::StatusOr<Plan> BuildPlan(const v1::JobSpec& spec, const DataFacts& facts) {
  TY_RETURN_IF_ERROR(CheckFacts(facts));
  TY_ASSIGN_OR_RETURN(const int64_t total_steps, TotalSteps(spec, facts));
  TY_RETURN_IF_ERROR(CheckSchedule(spec.schedule(), total_steps));
  Assembly assembly(spec, facts);
  TY_RETURN_IF_ERROR(assembly.AddTraining());
  TY_RETURN_IF_ERROR(assembly.AddEvaluation(spec.evaluation().batch_size()));
  return assembly.Finish(total_steps, /*training=*/true);
}

absl::StatusOr<Plan> BuildInferencePlan(const v1::JobSpec& spec, const DataFacts& facts,
                                        int64_t batch) {
  TY_RETURN_IF_ERROR(CheckFacts(facts));
  if (batch < 1)
    return absl::InvalidArgumentError(absl::StrCat("batch: ", batch, " is not positive"));
  Assembly assembly(spec, facts);
  TY_RETURN_IF_ERROR(assembly.AddEvaluation(batch));
  return assembly.Finish(0, /*training=*/false);
}

}  // namespace trainyard::plan
