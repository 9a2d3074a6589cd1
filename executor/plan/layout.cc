#include "executor/plan/layout.h"

#include <algorithm>
#include <variant>

#include "executor/plan/memory.h"
#include "executor/plan/passes/share_gradients.h"

namespace trainyard::plan {

namespace {

// They lie as the parameters do, at half the distances. Returns the end.
int64_t PlaceCopies(int64_t end, Plan& plan) {
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    if (plan.copies[i] == kNone) continue;
    plan.offsets[plan.copies[i]] = end;
    end += BytesInRun(plan.tensors[plan.copies[i]]);
  }
  return Align(end);
}

// Those of each type side by side, as the parameters do in numbers of elements. Returns the end.
int64_t PlaceGradients(int64_t end, Plan& plan) {
  for (const ElementType type : {ElementType::kBF16, ElementType::kF32}) {
    for (const TensorId id : plan.gradients) {
      if (plan.tensors[id].type != type) continue;
      plan.offsets[id] = end;
      end += BytesInRun(plan.tensors[id]);
    }
    end = Align(end);
  }
  return end;
}

// Packs the activations of lists of ops that take turns.
class Activations {
 public:
  explicit Activations(Plan& plan) : plan_(plan), within_(plan.tensors.size(), -1) {}

  // Returns the bytes beyond the gradients.
  int64_t Place() {
    const int64_t gradients = plan_.gradient_region.bytes;
    const int64_t micro = Pack(plan_.micro, {}, GradientsInMicro(plan_));
    const int64_t evaluation = PackEvaluation();
    const auto last = static_cast<int64_t>(plan_.end.size());
    const int64_t optimizer =
        Pack(plan_.end, {}, {{.bytes = gradients, .first = -1, .last = last}});
    for (size_t i = 0; i < within_.size(); ++i) {
      if (within_[i] >= 0) plan_.offsets[i] = plan_.gradient_region.offset + within_[i];
    }
    return std::max({int64_t{0}, micro, evaluation, optimizer});
  }

 private:
  // What is cast when an evaluation begins is there to its end.
  int64_t PackEvaluation() {
    std::vector<Op> ops = plan_.evaluate_begin;
    std::vector<TensorId> results = EvaluationResults(plan_);
    for (const Op& op : ops) results.push_back(std::get<Cast>(op).y);
    ops.insert(ops.end(), plan_.evaluate.begin(), plan_.evaluate.end());
    return Pack(ops, results, GradientsInEvaluation(plan_));
  }

  int64_t Pack(const std::vector<Op>& ops, const std::vector<TensorId>& results,
               const std::vector<Resident>& residents) {
    const int64_t gradients = plan_.gradient_region.bytes;
    const int64_t alone = PackActivations(plan_.tensors, ops, results, within_);
    const int64_t end = PackActivations(plan_.tensors, ops, results, within_, residents);
    if (end - gradients <= alone) return end - gradients;
    const auto last = static_cast<int64_t>(ops.size());
    return PackActivations(plan_.tensors, ops, results, within_,
                           {{.bytes = gradients, .first = -1, .last = last}}) -
           gradients;
  }

  Plan& plan_;
  std::vector<int64_t> within_;  // offsets from the start of the gradients; -1: not an activation
};

}  // namespace

std::vector<TensorId> EvaluationResults(const Plan& plan) {
  return {plan.eval_logits, plan.eval_losses, plan.eval_correct};
}

void LayOut(const std::vector<TensorId>& scalars, Plan& plan) {
  plan.offsets.assign(plan.tensors.size(), 0);
  int64_t end = 0;
  const auto place = [&](std::vector<TensorId> ids) {
    ids.erase(std::remove(ids.begin(), ids.end(), kNone), ids.end());
    end = PlaceInOrder(plan.tensors, ids, end, plan.offsets);
  };
  const auto region = [&](auto&& fill) {
    const int64_t begin = end;
    fill();
    return Region{.offset = begin, .bytes = end - begin};
  };
  plan.parameter_region = region([&] { place(plan.parameters); });
  plan.copy_region = region([&] { end = PlaceCopies(end, plan); });
  plan.optimizer_region = region([&] {
    for (const std::vector<TensorId>& kind : plan.optimizer_state) place(kind);
  });
  plan.ema_region = region([&] { place(plan.averages); });
  plan.buffer_region = region([&] { place(plan.buffers); });
  plan.pending_region = region([&] { place(plan.pending); });
  plan.scalar_region = region([&] { place(scalars); });
  plan.gradient_region = region([&] {
    end = PlaceGradients(end, plan);
    if (plan.row_gradient != kNone) place({plan.row_gradient, plan.row_ids});
  });
  plan.activation_region = region([&] { end += Activations(plan).Place(); });
  plan.arena_bytes = end;
}

}  // namespace trainyard::plan
