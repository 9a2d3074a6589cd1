#pragma once

// Plans of cuDNN that were made before, in memory and each in a file of its own for the next
// process. Knows nothing of CUDA.

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::kernels::cuda {

class PlanCache {
 public:
  // `machine` names GPU and library: plans are good for no other. `folder` "": nothing is kept.
  PlanCache(const std::string& folder, const std::string& machine);

  // What was put under the name; "": nothing.
  std::string Find(absl::string_view name) const;
  // Whoever cannot write makes the plan again next time.
  void Put(absl::string_view name, absl::string_view plan) const;

 private:
  std::string PathOf(absl::string_view name) const;

  std::string folder_;  // "": none
};

}  // namespace trainyard::kernels::cuda
