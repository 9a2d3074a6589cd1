#include "executor/plan/loss.h"

#include "absl/strings/str_cat.h"

namespace trainyard::plan {

namespace {

TensorId GradientOf(TensorId logits, const LossOptions& options) {
  const auto found = options.gradients.find(logits);
  return found == options.gradients.end() ? kNone : found->second;
}

Op LossOfWhole(const Forward& forward, const LossOptions& o) {
  if (forward.binary) {
    return BinaryCrossEntropy{.logits = forward.logits,
                              .targets = o.targets,
                              .losses = o.losses,
                              .correct = o.correct,
                              .dlogits = GradientOf(forward.logits, o),
                              .state = o.state,
                              .rows = o.rows,
                              .scale = o.scale};
  }
  return CrossEntropy{.logits = forward.logits,
                      .targets = o.targets,
                      .losses = o.losses,
                      .z_losses = o.z_losses,
                      .correct = o.correct,
                      .dlogits = GradientOf(forward.logits, o),
                      .state = o.state,
                      .rows = o.rows,
                      .classes = forward.classes,
                      .scale = o.scale,
                      .smoothing = o.smoothing,
                      .z_loss = o.z_loss};
}

std::vector<Op> LossOfShards(const Forward& forward, const LossOptions& o, GraphBuilder& builder) {
  std::vector<Op> each, gradients;
  CrossEntropyOfShards all{
      .targets = o.targets,
      .losses = o.losses,
      .z_losses = o.z_losses,
      .correct = o.correct,
      .norms = o.gradients.empty()
                   ? kNone
                   : builder.Activation("norms of rows", {o.rows, kernels::kRowNorm}),
      .rows = o.rows,
      .classes = forward.classes,
      .smoothing = o.smoothing,
      .z_loss = o.z_loss};
  int64_t first = 0;
  for (const TensorId logits : forward.logits_of_shards) {
    const int64_t classes = builder.tensor(logits).dims.back();
    const TensorId statistics =
        builder.Activation(absl::StrCat("statistics of ", builder.tensor(logits).name),
                           {o.rows, kernels::kClassStatistics});
    all.statistics.push_back(statistics);
    each.push_back(CrossEntropyShard{.logits = logits,
                                     .targets = o.targets,
                                     .statistics = statistics,
                                     .rows = o.rows,
                                     .classes = classes,
                                     .first = first,
                                     .with_mean = o.smoothing > 0,
                                     .with_first_largest = o.correct != kNone});
    if (const TensorId gradient = GradientOf(logits, o); gradient != kNone) {
      gradients.push_back(CrossEntropyShardGradient{.logits = logits,
                                                    .targets = o.targets,
                                                    .norms = all.norms,
                                                    .dlogits = gradient,
                                                    .state = o.state,
                                                    .rows = o.rows,
                                                    .classes = classes,
                                                    .first = first,
                                                    .all_classes = forward.classes,
                                                    .scale = o.scale,
                                                    .smoothing = o.smoothing,
                                                    .z_loss = o.z_loss});
    }
    first += classes;
  }
  each.push_back(std::move(all));
  each.insert(each.end(), gradients.begin(), gradients.end());
  return each;
}

}  // namespace

LogitGradients AddLogitGradients(const Forward& forward, int64_t rows, GraphBuilder& builder,
                                 Graph& graph) {
  LogitGradients gradients;
  if (forward.logits_of_shards.empty()) {
    const TensorId gradient =
        builder.Activation("d(logits)", {rows, forward.classes}, graph[forward.logits].type);
    graph.tensors[gradient].row_stride = graph[forward.logits].row_stride;
    gradients[forward.logits] = gradient;
  }
  for (const TensorId logits : forward.logits_of_shards) {
    const Tensor tensor = graph[logits];
    gradients[logits] =
        builder.Activation(absl::StrCat("d(", tensor.name, ")"), tensor.dims, tensor.type);
  }
  return gradients;
}

std::vector<Op> LossOf(const Forward& forward, const LossOptions& options, GraphBuilder& builder) {
  if (!forward.logits_of_shards.empty()) return LossOfShards(forward, options, builder);
  return {LossOfWhole(forward, options)};
}

std::vector<Op> TrainingLossOf(const v1::JobSpec& spec, const Plan& plan, const Forward& forward,
                               TensorId losses, const LogitGradients& gradients,
                               GraphBuilder& builder) {
  const v1::Training& training = spec.training();
  const int64_t rows = plan.micro_batch * forward.rows_per_sample;
  const int64_t global_rows = training.batch_size() * forward.rows_per_sample;
  const TensorId z_losses =
      plan.z_loss_sum != kNone ? builder.Activation("z_losses", {rows}) : kNone;
  std::vector<Op> ops = LossOf(forward,
                               {.rows = rows,
                                .targets = plan.target,
                                .losses = losses,
                                .z_losses = z_losses,
                                .state = plan.loss_scaling ? plan.state : kNone,
                                .gradients = gradients,
                                .scale = 1.0f / static_cast<float>(global_rows),
                                .smoothing = static_cast<float>(training.label_smoothing()),
                                .z_loss = static_cast<float>(training.z_loss())},
                               builder);
  const auto sum = [&](TensorId x, TensorId into) {
    ops.push_back(Sum{.x = x, .sum = into, .n = rows, .accumulate = true});
  };
  sum(losses, plan.loss_sum);
  if (z_losses != kNone) sum(z_losses, plan.z_loss_sum);
  ops.push_back(CountTargets{
      .targets = plan.target, .count = plan.target_count, .n = rows, .accumulate = true});
  return ops;
}

}  // namespace trainyard::plan
