#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "executor/data/dataset/warnings.h"

namespace trainyard::data {

// Counts the records that cannot be used and names the first few in warnings; or refuses them.
// Thread-safe. `warnings` must outlive it.
class SkippedRecords {
 public:
  SkippedRecords(bool refuse, Warnings& warnings) : refuse_(refuse), warnings_(warnings) {}

  // `why` names the record, of which only the first call counts. kInvalidArgument when records are
  // refused.
  absl::Status Add(const std::string& record, const absl::Status& why);

  // Different ones so far.
  int64_t count() const;

 private:
  const bool refuse_;
  Warnings& warnings_;
  mutable absl::Mutex mu_;
  absl::flat_hash_set<std::string> records_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard::data
