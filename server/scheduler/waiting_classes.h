#pragma once

// Why the jobs of a demand class wait, kept for whoever submits another of them.

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/scheduler/pass_steps.h"

namespace trainyard {

// A class whose jobs wait, all for one reason. Borrows the class.
struct WaitingClass {
  const DemandClass* demand;
  Reason reason;
};
using WaitingClasses = std::vector<WaitingClass>;

// What the newest pass of this replica found. Thread-safe.
//
// A job that is submitted behind others of its class mostly waits for the same reason as they do.
// If it is stored with that reason, its user reads it at once, and no pass has to write it. A
// reason that turns out to be another is written as any that changed.
class ForetoldReasons {
 public:
  // In place of what the pass before found; `limits` as it knew them.
  void Set(const WaitingClasses& waiting, std::shared_ptr<const SlotLimits> limits);

  // Of a job that is about to be submitted; absent: none of its class waits, as far as is known.
  std::optional<Reason> Find(const JobRecord& job) const;

 private:
  struct Foretold {
    Reason reason;
    int64_t pass = 0;
  };

  mutable absl::Mutex mu_;
  int64_t pass_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const SlotLimits> limits_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<const SlotLimits>();
  std::map<DemandClass, Foretold> reasons_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
