#include "kernels/cuda/cudnn.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {

absl::StatusOr<std::unique_ptr<Cudnn>> Cudnn::Make(const std::string& folder,
                                                   const std::string& gpu, TrialTime& time) {
  cudnnHandle_t handle = nullptr;
  const absl::Status made = ToStatus(cudnnCreate(&handle), "cudnnCreate");
  if (!made.ok()) return made;
  PlanCache cache(folder, absl::StrCat(gpu, "-cudnn-", cudnnGetVersion()));
  return std::unique_ptr<Cudnn>(new Cudnn(handle, std::move(cache), time));
}

absl::StatusOr<std::shared_ptr<PlanSet>> Cudnn::Plans(const std::string& name,
                                                      const MakePlans& make) {
  std::shared_ptr<PlanSet>& set = sets_[name];
  if (set != nullptr) return set;
  const auto made = std::make_shared<PlanSet>();
  const PlanTarget target = PlanTarget::Of(handle());
  if (const std::string known = cache_.Find(name); !known.empty()) {
    absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Deserialize(target, known);
    made->settled = plan.ok();
    if (plan.ok()) made->plans.push_back(*std::move(plan));
  }
  if (!made->settled) {
    absl::StatusOr<std::vector<std::unique_ptr<Plan>>> plans = make(target);
    if (!plans.ok()) return plans.status();
    made->plans = *std::move(plans);
  }
  for (const std::unique_ptr<Plan>& plan : made->plans) {
    made->workspace_bytes = std::max(made->workspace_bytes, plan->workspace_bytes());
  }
  return set = made;
}

void Cudnn::Settle(const std::string& name, PlanSet& set) const {
  set.settled = true;
  cache_.Put(name, set.plans.front()->Serialized());
}

cudnnStatus_t Cudnn::Use(cudaStream_t stream) {
  if (stream == stream_) return CUDNN_STATUS_SUCCESS;
  const cudnnStatus_t error = cudnnSetStream(handle_.get(), stream);
  if (error == CUDNN_STATUS_SUCCESS) stream_ = stream;
  return error;
}

}  // namespace trainyard::kernels::cuda
