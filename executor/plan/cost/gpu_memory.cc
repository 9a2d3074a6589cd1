#include "executor/plan/cost/gpu_memory.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/scratch/cuda.h"

namespace trainyard::plan {

int64_t UploadQueueBytes(const Plan& plan) {
  constexpr auto kAlign = static_cast<int64_t>(kernels::cuda::kWorkspaceAlign);
  const auto bytes = [&](std::initializer_list<TensorId> ids) {
    int64_t sum = 0;
    for (const TensorId id : ids) {
      if (id != kNone) sum += kernels::scratch::RoundUp(plan.tensors[id].bytes(), kAlign);
    }
    return sum;
  };
  return std::max(bytes({plan.state, plan.input, plan.ids, plan.target}),
                  bytes({plan.eval_input, plan.eval_ids, plan.eval_target}));
}

}  // namespace trainyard::plan
