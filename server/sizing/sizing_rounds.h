#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/sizing/frames.h"
#include "server/sizing/size_job.h"

namespace trainyard {

// Lets those who ask the same at the same time share one answer. Whoever comes while a round is
// under way waits for the next one, and shares it with all who came meanwhile. So the files are
// always looked at after the question came, and cannot have changed in between. One of those who
// share a round asks for all.
//
// Thread-safe; no thread of its own.
class SizingRounds {
 public:
  // Equal keys must ask for the same. `ask` is run by this call or not at all, and returns by
  // `until`. kUnavailable: no round began in time. A round that was cut off, because the caller
  // that ran it had less time, is run again.
  absl::StatusOr<Sizing> Ask(const std::string& key, SteadyTime until,
                             absl::FunctionRef<absl::StatusOr<Sizing>()> ask);

 private:
  struct Round {
    int sharers = 0;
    bool begun = false;
    bool done = false;
    bool cut = false;  // the one who asked had no more time
    absl::StatusOr<Sizing> sizing = absl::UnknownError("not asked");
  };
  struct Line {
    bool under_way = false;
    std::shared_ptr<Round> next;  // shared by those who wait for it
  };

  // The round that this call shares, once it is done or this call has to run it; null: too late.
  std::shared_ptr<Round> Join(const std::string& key, SteadyTime until);
  void Finish(const std::string& key, Round& round);

  absl::Mutex mu_;
  std::map<std::string, Line> lines_ ABSL_GUARDED_BY(mu_);  // keys that somebody asks for now
};

}  // namespace trainyard
