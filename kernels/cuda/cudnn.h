#pragma once

// cuDNN's state on a GPU.

#include <cudnn.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/plan_cache.h"
#include "kernels/cuda/trial.h"

namespace trainyard::kernels::cuda {

// Plans for the same work, shared by all ops that do it.
struct PlanSet {
  std::vector<std::unique_ptr<Plan>> plans;  // the first is the one that runs
  size_t workspace_bytes = 0;                // the most that any of the plans wants
  // The first plan was measured to be the fastest, or found to agree with our own kernels, by this
  // process or an earlier one.
  bool settled = false;
  bool distrusted = false;  // it was found to disagree with our own kernels
};

// The library's state on the GPU that was current when it was made, and the plans made there so
// far. One thread uses it.
class Cudnn {
 public:
  // Plans are kept in `folder`, for GPUs called `gpu` only. `time` is what measuring may still
  // take; it outlives this object and all plans.
  static absl::StatusOr<std::unique_ptr<Cudnn>> Make(const std::string& folder,
                                                     const std::string& gpu, TrialTime& time);

  // Makes the library's calls enqueue on `stream` from here on.
  cudnnStatus_t Use(cudaStream_t stream);
  cudnnHandle_t handle() const { return handle_.get(); }
  TrialTime& time() const { return time_; }

  // The plans called `name`: those that this process has, or else the one that an earlier process
  // kept, or else what `make` makes.
  using MakePlans =
      std::function<absl::StatusOr<std::vector<std::unique_ptr<Plan>>>(const PlanTarget& target)>;
  absl::StatusOr<std::shared_ptr<PlanSet>> Plans(const std::string& name, const MakePlans& make);
  // Marks the first plan as settled and keeps it for later processes.
  void Settle(const std::string& name, PlanSet& set) const;

 private:
  struct Destroy {
    void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
  };

  Cudnn(cudnnHandle_t handle, PlanCache cache, TrialTime& time)
      : handle_(handle), cache_(std::move(cache)), time_(time) {}

  std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, Destroy> handle_;
  cudaStream_t stream_ = nullptr;
  const PlanCache cache_;
  TrialTime& time_;
  std::map<std::string, std::shared_ptr<PlanSet>> sets_;
};

}  // namespace trainyard::kernels::cuda
