#pragma once

// Serialized plans of cuDNN for the next process, each in a file of its own. Knows nothing of CUDA.

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::kernels::cuda {

class PlanCache {
 public:
  // `machine` names GPU and library: plans are good for no other. `folder` "": nothing is kept.
  PlanCache(const std::string& folder, const std::string& machine);

  // The plan that was put under `name`; "" if there is none.
  std::string Find(absl::string_view name) const;
  // If it cannot write, the next process makes the plan again.
  void Put(absl::string_view name, absl::string_view plan) const;

 private:
  std::string PathOf(absl::string_view name) const;

  std::string folder_;  // "": none
};

}  // namespace trainyard::kernels::cuda
