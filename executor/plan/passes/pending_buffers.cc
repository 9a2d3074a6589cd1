#include "executor/plan/passes/pending_buffers.h"

#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/memory/memory.h"

namespace trainyard::plan {

namespace {

int64_t PaddedElements(const Tensor& tensor) { return Align(tensor.bytes()) / SizeOf(tensor.type); }

// With momentum 1 and its buffers zeroed, batch norm writes the mean and variance of the
// micro-batch itself. Returns the momentum that each pending buffer had.
absl::flat_hash_map<TensorId, float> WriteMoments(std::vector<Op>& ops) {
  absl::flat_hash_map<TensorId, float> momentum_of;
  for (Op& op : ops) {
    auto* const norm = std::get_if<BatchNormForward>(&op);
    if (norm == nullptr || norm->again) continue;
    const float momentum = std::exchange(norm->momentum, 1.0f);
    momentum_of[norm->running_mean] = momentum_of[norm->running_var] = momentum;
  }
  return momentum_of;
}

void KeepMoments(int64_t n, Plan& plan) {
  const absl::flat_hash_map<TensorId, float> momentum_of = WriteMoments(plan.micro);
  for (size_t i = 0; i < plan.pending.size(); ++i) {
    const int64_t of_this = PaddedElements(plan.tensors[plan.pending[i]]);
    const double decay = 1 - static_cast<double>(momentum_of.at(plan.pending[i]));
    auto* const last =
        plan.move_buffers.empty() ? nullptr : &std::get<EmaStep>(plan.move_buffers.back());
    if (last != nullptr && last->decay == decay) {
      last->n += of_this;
      continue;
    }
    plan.move_buffers.push_back(EmaStep{.average = plan.buffers[i],
                                        .w = plan.pending[i],
                                        .grad_scale = plan.grad_scale,
                                        .state = plan.state,
                                        .n = of_this,
                                        .decay = decay});
  }
  plan.tensors.push_back({.name = "moments",
                          .dims = {plan.logical_ranks * plan.micro_batches, n},
                          .kind = TensorKind::kPendingBuffer});
  plan.moments = static_cast<TensorId>(plan.tensors.size()) - 1;
  plan.micro.insert(plan.micro.begin(), Zero{.x = plan.pending[0], .n = n});
}

}  // namespace

size_t MovePendingBuffers(Plan& plan) {
  if (plan.buffers.empty()) return 0;
  absl::flat_hash_map<TensorId, TensorId> pending_of;
  int64_t n = 0;
  for (const TensorId id : plan.buffers) {
    Tensor pending = plan.tensors[id];
    pending.name.append("'");
    pending.kind = TensorKind::kPendingBuffer;
    n += PaddedElements(pending);
    plan.tensors.push_back(std::move(pending));
    plan.pending.push_back(static_cast<TensorId>(plan.tensors.size()) - 1);
    pending_of[id] = plan.pending.back();
  }
  Retarget(pending_of, plan.micro);
  if (plan.logical_ranks > 1) {
    KeepMoments(n, plan);
    return 1;
  }
  plan.begin.push_back(Cast{.x = plan.buffers[0], .y = plan.pending[0], .n = n});
  plan.end.push_back(CopyIfTaken{
      .x = plan.pending[0], .y = plan.buffers[0], .grad_scale = plan.grad_scale, .n = n});
  return 0;
}

}  // namespace trainyard::plan
