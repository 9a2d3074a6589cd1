#include "executor/plan/passes/optimizer_step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/norm_of_shards.h"
#include "executor/plan/passes/shard_gradients.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "executor/plan/spec/mesh.h"
#include "kernels/scratch/sizes.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// What one op steps: parameters that lie side by side, and what goes with them.
struct Stepped {
  TensorId w, grad, copy;       // their first
  std::vector<TensorId> state;  // by kind
  int64_t n = 0;                // elements
};

class OptimizerStep {
 public:
  OptimizerStep(const v1::JobSpec& spec, const TrainedParameters& parameters, TensorId sum,
                Plan& plan)
      : spec_(spec),
        optimizer_(spec.optimizer()),
        parameters_(parameters),
        sum_(sum),
        scale_(plan.grad_scale),
        plan_(plan) {}

  void Append() {
    AddNorm();
    if (plan_.sharded) {
      AddOwned();
    } else {
      AddAll();
    }
    if (plan_.row_gradient != kNone) AddRowStep();
    if (spec_.training().has_ema_decay()) AddAverage();
  }

 private:
  const ParameterRule& rule(size_t position) const { return parameters_.rules[position]; }

  bool copied(size_t position) const { return plan_.copies[position] != kNone; }

  ElementType gradient_type(size_t position) const {
    return plan_.tensors[plan_.gradients[position]].type;
  }

  // Whether one op may make the steps of both.
  bool Alike(size_t a, size_t b) const {
    return rule(a) == rule(b) && copied(a) == copied(b) && gradient_type(a) == gradient_type(b);
  }

  void AddAll() {
    for (size_t first = 0; first < parameters_.dense;) {
      size_t end = first + 1;
      while (end < parameters_.dense && Alike(first, end)) ++end;
      AddRun(first, end);
      first = end;
    }
  }

  // Copies are written when all ranks have stepped. Of tensors that stay whole there are LAMB's
  // alone: Muon's are not sharded (spec/parallel.cc).
  void AddOwned() {
    const std::vector<PlacedTensor> placed = PlacedTensors(plan_, parameters_.dense);
    for (const OwnedRun& run : plan_.owned) {
      const auto in_run = [&](const PlacedTensor& p) {
        return Common(p.elements, run.elements).size() > 0;
      };
      const auto first = std::find_if(placed.begin(), placed.end(), in_run);
      TY_CHECK(first != placed.end(), "elements from ", run.elements.first,
               " on are no parameter's");
      if (!StepsWholeTensors(optimizer_, rule(first->position))) {
        AddStep(rule(first->position), Part(run, run.elements));
        continue;
      }
      for (auto p = first; p != placed.end() && in_run(*p); ++p) {
        AddLambStep(rule(p->position), Part(run, Exactly(*p)), 0, p->stored.elements(),
                    /*adapt=*/true);
      }
    }
    AppendCopies(0, parameters_.dense, plan_, plan_.gathered);
  }

  // Without what pads it.
  static ElementRange Exactly(const PlacedTensor& p) {
    return {p.elements.first, p.elements.first + p.stored.elements()};
  }

  Stepped Part(const OwnedRun& run, const ElementRange& part) {
    const int64_t n = part.size();
    const auto of_run = [&](const char* what, TensorId id) {
      const int64_t begin = part.first - run.elements.first;
      return id == kNone || part == run.elements ? id : AddAlias(what, id, begin, n, plan_);
    };
    Stepped stepped{.w = plan_.parameters_sharded
                             ? of_run("weights", run.weights)
                             : AddAlias("parameters", plan_.parameters[0], part.first, n, plan_),
                    .grad = AddGradientAlias(part.first, n, plan_),
                    .copy = kNone,
                    .n = n};
    for (const TensorId state : run.state) {
      stepped.state.push_back(of_run("optimizer state", state));
    }
    return stepped;
  }

  Stepped Run(size_t first, size_t end) const {
    Stepped run{.w = plan_.parameters[first],
                .grad = plan_.gradients[first],
                .copy = plan_.copies[first],
                .n = RunLength(plan_, first, end)};
    for (const auto& kind : plan_.optimizer_state) run.state.push_back(kind[first]);
    return run;
  }

  void AddStep(const ParameterRule& rule, const Stepped& run) {
    switch (rule.method) {
      case Method::kSgd:
        return AddSgd(rule, run);
      case Method::kAdamW:
        return AddAdamW(rule, run);
      case Method::kLamb:
        return AddLambStep(rule, run, 0, run.n, /*adapt=*/false);
      case Method::kMuon:
        TY_CHECK(false, "a run of Muon's matrices is no matrix");
    }
  }

  template <typename T>
  void Emit(T op) {
    plan_.end.push_back(std::move(op));
  }

  // The place of the state `name` among the kinds.
  size_t Kind(const char* name) const {
    const auto& names = plan_.optimizer_state_names;
    const auto at = std::find(names.begin(), names.end(), name);
    TY_CHECK(at != names.end(), name);
    return at - names.begin();
  }
  TensorId State(const char* name, size_t position) const {
    return plan_.optimizer_state[Kind(name)][position];
  }
  TensorId State(const char* name, const Stepped& run) const { return run.state[Kind(name)]; }

  void AddNorm() {
    if (HasNormOfShards(spec_.parallel())) {
      AddNormOfShards(sum_, plan_);
    } else if (plan_.sharded) {
      AddNormOfOwned();
    } else {
      AddNormOf(ElementType::kBF16);
      AddNormOf(ElementType::kF32);
    }
    if (plan_.row_gradient != kNone) AddRowNorm();
    plan_.norm.push_back(ClipScale{.sum = sum_,
                                   .count = plan_.target_count,
                                   .loss = plan_.loss_sum,
                                   .norm = plan_.grad_norm,
                                   .scale = scale_,
                                   .state = plan_.loss_scaling ? plan_.state : kNone,
                                   .rows = spec_.training().batch_size() * plan_.rows_per_sample,
                                   .max_norm = optimizer_.has_clip_norm()
                                                   ? static_cast<float>(optimizer_.clip_norm())
                                                   : std::numeric_limits<float>::infinity()});
  }

  void AddNormOfOwned() {
    const int64_t elements = RunLength(plan_, 0, parameters_.dense);
    for (const Bucket& bucket : plan_.buckets) {
      const ElementRange leaves = LeavesOf(bucket.slices[plan_.rank]);
      if (leaves.size() == 0) continue;
      const int64_t first = leaves.first * kernels::kNormLeaf;
      const int64_t n = std::min(elements, leaves.end * kernels::kNormLeaf) - first;
      plan_.norm_leaves.push_back(SquaredNormLeaves{
          .x = AddGradientAlias(first, n, plan_),
          .leaves = AddAlias("leaves", plan_.leaves, leaves.first, leaves.size(), plan_),
          .n = n});
    }
    const int64_t count = plan_.tensors[plan_.leaves].elements();
    plan_.norm.push_back(AddLeaves{.leaves = plan_.leaves, .sum = sum_, .count = count});
  }

  // Gradients of one type lie side by side.
  void AddNormOf(ElementType type) {
    SquaredNorm norm{.sum = sum_, .accumulate = !plan_.norm.empty()};
    for (size_t i = 0; i < parameters_.dense; ++i) {
      if (gradient_type(i) != type) continue;
      if (norm.x == kNone) norm.x = plan_.gradients[i];
      norm.n += RunLength(plan_, i, i + 1);
    }
    if (norm.x != kNone) plan_.norm.push_back(norm);
  }

  // Distinct rows, so that the norm is that of the whole gradient.
  void AddRowNorm() {
    const Tensor& gradient = plan_.tensors[plan_.row_gradient];
    plan_.norm.push_back(MergeRows{.grad = plan_.row_gradient,
                                   .ids = plan_.row_ids,
                                   .samples = gradient.dims[0],
                                   .count = gradient.dims[1],
                                   .width = gradient.dims[2],
                                   .logical_ranks = plan_.logical_ranks});
    plan_.norm.push_back(SquaredNorm{.x = plan_.row_gradient,
                                     .sum = sum_,
                                     .n = gradient.elements(),
                                     .accumulate = parameters_.dense > 0});
  }

  void AddRun(size_t first, size_t end) {
    if (!StepsWholeTensors(optimizer_, rule(first))) {
      AddStep(rule(first), Run(first, end));
    } else {
      for (size_t i = first; i < end; ++i) AddWhole(i);
    }
    const Method method = rule(first).method;  // SGD and AdamW write copies as they go
    if (method == Method::kSgd || method == Method::kAdamW) return;
    AppendCopies(first, end, plan_, plan_.end);
  }

  // Each tensor that a checkpoint stores of the parameter at `position`.
  void AddWhole(size_t position) {
    const Stepped all = Run(position, position + 1);
    for (const StoredTensor& stored : Stored(plan_.tensors[plan_.parameters[position]])) {
      const int64_t offset = stored.offset / SizeOf(ElementType::kF32);
      if (rule(position).method == Method::kMuon) {
        AddMuonMatrix(rule(position), stored, all, offset);
      } else {
        AddLambStep(rule(position), all, offset, stored.elements(), /*adapt=*/true);
      }
    }
  }

  void AddSgd(const ParameterRule& rule, const Stepped& run) {
    const v1::Sgd& sgd = optimizer_.sgd();
    Emit(SgdStep{.w = run.w,
                 .grad = run.grad,
                 .velocity = sgd.momentum() > 0 ? State("momentum_buffer", run) : kNone,
                 .grad_scale = scale_,
                 .state = plan_.state,
                 .copy = run.copy,
                 .n = run.n,
                 .momentum = static_cast<float>(sgd.momentum()),
                 .weight_decay = static_cast<float>(rule.weight_decay),
                 .learning_rate_scale = static_cast<float>(rule.learning_rate_scale),
                 .nesterov = sgd.nesterov()});
  }

  // What AdamW makes its steps by: the optimizer, or what Muon leaves over.
  const v1::AdamW& adamw() const {
    return optimizer_.has_muon() ? optimizer_.muon().adamw() : optimizer_.adamw();
  }

  void AddAdamW(const ParameterRule& rule, const Stepped& run) {
    Emit(AdamWStep{.w = run.w,
                   .grad = run.grad,
                   .m = State("exp_avg", run),
                   .v = State("exp_avg_sq", run),
                   .grad_scale = scale_,
                   .state = plan_.state,
                   .copy = run.copy,
                   .n = run.n,
                   .beta1 = static_cast<float>(adamw().beta1()),
                   .beta2 = static_cast<float>(adamw().beta2()),
                   .epsilon = static_cast<float>(adamw().epsilon()),
                   .weight_decay = static_cast<float>(rule.weight_decay),
                   .learning_rate_scale = static_cast<float>(rule.learning_rate_scale)});
  }

  // Elements [offset, offset + n) of `run`. A trust ratio is one tensor's; without it a run is
  // stepped at once, like any other.
  void AddLambStep(const ParameterRule& rule, const Stepped& run, int64_t offset, int64_t n,
                   bool adapt) {
    const v1::Lamb& lamb = optimizer_.lamb();
    Emit(LambStep{.w = run.w,
                  .grad = run.grad,
                  .m = State("exp_avg", run),
                  .v = State("exp_avg_sq", run),
                  .grad_scale = scale_,
                  .state = plan_.state,
                  .offset = offset,
                  .n = n,
                  .beta1 = static_cast<float>(lamb.beta1()),
                  .beta2 = static_cast<float>(lamb.beta2()),
                  .epsilon = static_cast<float>(lamb.epsilon()),
                  .weight_decay = static_cast<float>(rule.weight_decay),
                  .learning_rate_scale = static_cast<float>(rule.learning_rate_scale),
                  .adapt = adapt});
  }

  // The matrix that begins `offset` elements from the start of `run`.
  void AddMuonMatrix(const ParameterRule& rule, const StoredTensor& matrix, const Stepped& run,
                     int64_t offset) {
    const v1::Muon& muon = optimizer_.muon();
    const int64_t rows = matrix.dims[0], n = matrix.elements(), cols = n / rows;
    const TensorId update = Scratch(absl::StrCat(matrix.name, ".update"), rows, cols);
    Emit(MuonMomentum{.grad = run.grad,
                      .velocity = State("momentum_buffer", run),
                      .y = update,
                      .grad_scale = scale_,
                      .offset = offset,
                      .n = n,
                      .momentum = static_cast<float>(muon.momentum()),
                      .nesterov = muon.nesterov()});
    const TensorId orthogonal = AddNewtonSchulz(matrix.name, update, rows, cols);
    const auto longer = static_cast<double>(std::max(rows, cols));
    const auto in = static_cast<double>(rule.input_first ? rows : cols);
    const double scale = muon.scale() == v1::Muon::MATCH_RMS_ADAMW ? 0.2 * std::sqrt(longer)
                                                                   : std::sqrt(longer / in);
    Emit(MuonStep{.w = run.w,
                  .x = orthogonal,
                  .grad_scale = scale_,
                  .state = plan_.state,
                  .offset = offset,
                  .n = n,
                  .scale = static_cast<float>(scale),
                  .weight_decay = static_cast<float>(rule.weight_decay),
                  .learning_rate_scale = static_cast<float>(rule.learning_rate_scale)});
  }

  // x [rows, cols] with its singular values driven towards 1, by products with the smaller of x x^T
  // and x^T x. Returns where the result is.
  TensorId AddNewtonSchulz(const std::string& name, TensorId x, int64_t rows, int64_t cols) {
    // Jordan et al. 2024: steep at 0, so that few iterations lift small singular values, at the
    // price of ending anywhere in about [0.7, 1.2].
    constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
    const bool wide = rows <= cols;
    const int64_t small = std::min(rows, cols), large = std::max(rows, cols);
    Emit(SquaredNorm{.x = x, .sum = sum_, .n = rows * cols});
    Emit(DivideByNorm{.x = x, .sum = sum_, .n = rows * cols});
    TensorId next = Scratch(absl::StrCat(name, ".next"), rows, cols);
    const TensorId gram = Scratch(absl::StrCat(name, ".gram"), small, small);
    const TensorId square = Scratch(absl::StrCat(name, ".gram^2"), small, small);
    for (int i = 0; i < optimizer_.muon().iterations(); ++i) {
      Emit(Matmul{.a = x,
                  .b = x,
                  .c = gram,
                  .m = small,
                  .n = small,
                  .k = large,
                  .transpose_a = !wide,
                  .transpose_b = wide});
      Emit(Matmul{.a = gram, .b = gram, .c = square, .m = small, .n = small, .k = small});
      Emit(NewtonSchulz{.x = gram, .y = square, .n = small, .a = kA, .b = kB, .c = kC});
      Emit(Matmul{.a = wide ? square : x,
                  .b = wide ? x : square,
                  .c = next,
                  .m = rows,
                  .n = cols,
                  .k = small});
      std::swap(x, next);
    }
    return x;
  }

  // Lives within the end of the step: shares memory with the activations.
  TensorId Scratch(const std::string& name, int64_t rows, int64_t cols) {
    plan_.tensors.push_back({.name = name, .dims = {rows, cols}});
    return static_cast<TensorId>(plan_.tensors.size()) - 1;
  }

  // The tables, or what this rank has of them, or what goes with that by the kind of state `name`.
  std::vector<TensorId> Tables(const char* name = nullptr) const {
    std::vector<TensorId> tables;
    for (size_t i = parameters_.dense; i < parameters_.trained; ++i) {
      if (plan_.tables.empty()) {
        tables.push_back(name == nullptr ? plan_.parameters[i] : State(name, i));
      } else {
        const OwnedRun& own = plan_.owned_rows[i - parameters_.dense];
        tables.push_back(name == nullptr ? own.weights : own.state[Kind(name)]);
      }
    }
    return tables;
  }

  void AddRowStep() {
    const size_t first = parameters_.dense;
    const std::vector<int64_t>& dims = plan_.tensors[plan_.row_gradient].dims;
    const auto rate = static_cast<float>(rule(first).learning_rate_scale);
    if (rule(first).method == Method::kSgd) {
      return Emit(SgdRows{.grad = plan_.row_gradient,
                          .ids = plan_.row_ids,
                          .grad_scale = scale_,
                          .state = plan_.state,
                          .tables = Tables(),
                          .samples = dims[0],
                          .width = dims[2],
                          .learning_rate_scale = rate});
    }
    Emit(AdamWRows{.grad = plan_.row_gradient,
                   .ids = plan_.row_ids,
                   .grad_scale = scale_,
                   .state = plan_.state,
                   .tables = Tables(),
                   .m = Tables("exp_avg"),
                   .v = Tables("exp_avg_sq"),
                   .samples = dims[0],
                   .width = dims[2],
                   .beta1 = static_cast<float>(adamw().beta1()),
                   .beta2 = static_cast<float>(adamw().beta2()),
                   .epsilon = static_cast<float>(adamw().epsilon()),
                   .weight_decay = static_cast<float>(rule(first).weight_decay),
                   .learning_rate_scale = rate});
  }

  void AddAverage() {
    EmaStep step{.average = plan_.averages[0],
                 .w = plan_.parameters[0],
                 .grad_scale = scale_,
                 .state = plan_.state,
                 .n = RunLength(plan_, 0, parameters_.trained),
                 .decay = spec_.training().ema_decay(),
                 .warmup = spec_.training().ema_warmup()};
    (plan_.sharded ? plan_.gathered : plan_.end).push_back(step);
    step.decay = 0;
    step.grad_scale = kNone;
    plan_.start.push_back(step);
  }

  const v1::JobSpec& spec_;
  const v1::Optimizer& optimizer_;
  const TrainedParameters& parameters_;
  const TensorId sum_;
  const TensorId scale_;  // of gradients
  Plan& plan_;
};

}  // namespace

int64_t RunLength(const Plan& plan, size_t first, size_t end) {
  int64_t bytes = 0;
  for (size_t i = first; i < end; ++i) bytes += Align(plan.tensors[plan.parameters[i]].bytes());
  return bytes / SizeOf(ElementType::kF32);
}

void AppendCopies(size_t first, size_t end, const Plan& plan, std::vector<Op>& ops) {
  for (size_t i = first; i < end;) {
    size_t next = i + 1;
    while (next < end && plan.copies[next] != kNone) ++next;
    if (plan.copies[i] != kNone) {
      ops.push_back(
          Cast{.x = plan.parameters[i], .y = plan.copies[i], .n = RunLength(plan, i, next)});
    }
    i = plan.copies[i] != kNone ? next : i + 1;
  }
}

void AppendOptimizer(const v1::JobSpec& spec, const TrainedParameters& parameters, TensorId sum,
                     Plan& plan) {
  OptimizerStep(spec, parameters, sum, plan).Append();
}

}  // namespace trainyard::plan
