#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace trainyard::data {

// What the user should know of data although it can be trained on. Thread-safe.
class Warnings {
 public:
  void Add(std::string warning) {
    absl::MutexLock lock(&mu_);
    waiting_.push_back(std::move(warning));
  }

  // Those that were added since the last call.
  std::vector<std::string> Take() {
    absl::MutexLock lock(&mu_);
    return std::exchange(waiting_, {});
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard::data
