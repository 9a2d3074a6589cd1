#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/sizing/frames.h"
#include "server/sizing/size_job.h"

namespace trainyard {

// A sizing and the files that it holds for.
struct KnownSizing {
  Sizing sizing;
  std::string identity;  // as IdentityOf says
};

// Sizings that are known, within a bound of bytes: the least recently used goes first. Thread-safe.
class SizingCache {
 public:
  explicit SizingCache(int64_t most_bytes) : most_bytes_(most_bytes) {}

  struct Found {
    std::shared_ptr<const KnownSizing> known;  // null: nothing is known
    SteadyTime looked = SteadyTime::min();     // when it was last known to hold
  };
  // Whether a sizing still holds must be checked with its files.
  Found Find(const std::string& key);
  void Put(const std::string& key, KnownSizing known, SteadyTime looked);
  // The files of `known` were looked at again, and are the same; nothing if another has replaced
  // it.
  void StillHolds(const std::string& key, const KnownSizing& known, SteadyTime looked);
  void Remove(const std::string& key);

  int64_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const KnownSizing> known;  // shared with who is just reading it
    int64_t bytes;
    SteadyTime looked;
  };
  using Entries = std::list<Entry>;

  void Drop(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t most_bytes_;
  mutable absl::Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);  // used last first
  std::map<std::string, Entries::iterator> by_key_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace trainyard
