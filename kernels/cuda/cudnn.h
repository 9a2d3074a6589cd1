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
  size_t workspace_bytes = 0;                // of the one that wants most
  // The first one was measured, or found to do what our own kernels do, here or by an earlier
  // process.
  bool settled = false;
  bool distrusted = false;  // it was found to do something else
};

// The library's state on the GPU that was current when it was made, and the plans that it made
// there before. One thread uses it.
class Cudnn {
 public:
  // Plans are kept in `folder`, as those of GPUs called `gpu`. `time` is what measuring may still
  // take, and outlives all.
  static absl::StatusOr<std::unique_ptr<Cudnn>> Make(const std::string& folder,
                                                     const std::string& gpu, TrialTime& time);

  // Calls go to `stream` from here on.
  cudnnStatus_t Use(cudaStream_t stream);
  cudnnHandle_t handle() const { return handle_.get(); }
  TrialTime& time() const { return time_; }

  // The plans of that name: of this process, or of an earlier one, or else what `make` makes.
  using MakePlans =
      std::function<absl::StatusOr<std::vector<std::unique_ptr<Plan>>>(const PlanTarget& target)>;
  absl::StatusOr<std::shared_ptr<PlanSet>> Plans(const std::string& name, const MakePlans& make);
  // The first plan is settled, for later processes, too.
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
