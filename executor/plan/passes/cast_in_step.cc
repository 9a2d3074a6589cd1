#include "executor/plan/passes/cast_in_step.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/memory/memory.h"

namespace trainyard::plan {

namespace {

// Makes an activation of `copy`; returns its bytes.
int64_t MakePassing(TensorId copy, Plan& plan) {
  Tensor& tensor = plan.tensors[copy];
  tensor.kind = TensorKind::kActivation;
  return Align(tensor.bytes());
}

class Casting {
 public:
  Casting(const std::vector<StepCopy>& copies, Plan& plan) : plan_(plan) {
    for (const StepCopy& c : copies) casts_[c.copy] = {.weight = c.weight};
  }

  // From now on what was cast before is cast anew, into memory of its own.
  void Forget() {
    for (auto& [copy, of] : casts_) of.cast = kNone;
  }

  // Appends `op`, after the casts that it waits for.
  void Append(Op op) {
    const auto read = [&](TensorId& id, Access) {
      const auto found = casts_.find(id);
      if (found == casts_.end()) return;
      if (found->second.cast == kNone) Make(id, found->second);
      id = found->second.cast;
    };
    VisitOperands(op, read);
    ops_.push_back(std::move(op));
  }

  size_t count() const { return ops_.size(); }
  std::vector<Op> ops() && { return std::move(ops_); }

 private:
  struct OfWeight {
    TensorId weight = kNone;
    TensorId cast = kNone;  // what holds the copy now; kNone: nothing
    bool made = false;      // once
  };

  void Make(TensorId copy, OfWeight& of) {
    of.cast = copy;
    if (std::exchange(of.made, true)) {
      Tensor second = plan_.tensors[copy];
      absl::StrAppend(&second.name, " again");
      plan_.tensors.push_back(std::move(second));
      of.cast = static_cast<TensorId>(plan_.tensors.size()) - 1;
    }
    ops_.push_back(Cast{.x = of.weight, .y = of.cast, .n = plan_.tensors[copy].elements()});
  }

  Plan& plan_;
  absl::flat_hash_map<TensorId, OfWeight> casts_;  // by copy
  std::vector<Op> ops_;
};

}  // namespace

size_t CastInStep(const std::vector<StepCopy>& copies, size_t forward, bool again, Plan& plan) {
  int64_t in_micro = 0, in_evaluation = 0;
  for (const StepCopy& c : copies) in_micro += MakePassing(c.copy, plan);
  for (const Op& op : plan.evaluate_begin) in_evaluation += MakePassing(std::get<Cast>(op).y, plan);
  plan.step_copy_bytes = std::max(in_micro, in_evaluation);
  if (copies.empty()) return forward;

  Casting casting(copies, plan);
  const auto append = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) casting.Append(std::move(plan.micro[i]));
  };
  append(0, forward);
  const size_t in_forward = casting.count();
  if (again) casting.Forget();
  append(forward, plan.micro.size());
  plan.micro = std::move(casting).ops();
  return in_forward;
}

}  // namespace trainyard::plan
