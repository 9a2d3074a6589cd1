#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "executor/plan/choose.h"
#include "executor/plan/layouts.h"
#include "executor/plan/spec/facts.h"
#include "server/sizing/limits.h"
#include "server/sizing/size_job.h"
#include "server/sizing/sizer_lane.h"
#include "server/sizing/sizing_cache.h"
#include "server/sizing/sizing_rounds.h"

namespace trainyard {

struct SizerOptions {
  std::string program;  // empty: trainyard-sizer beside this process' own program

  // Quick lane: so many questions at once, in helpers that were started before and are kept. What
  // does not end within these limits is asked again in the patient lane, so that one large file
  // does not hold up small ones.
  int quick_helpers = 3;
  SizingLimits quick{.memory_bytes = int64_t{32} << 20, .time = absl::Seconds(5)};
  // Planning lane: questions that look at no file, each in a helper of its own, so that plans do
  // not hold up files. A mesh or layouts that do not fit these limits are asked for again in the
  // patient lane, too; advice is not.
  int planners = 2;
  SizingLimits planning{.memory_bytes = int64_t{20} << 20, .time = absl::Seconds(10)};
  // Patient lane: one question at a time, each in a helper of its own. The memory of all lanes
  // together is what the jobs of users may take of this machine.
  SizingLimits patient{.memory_bytes = int64_t{104} << 20, .time = absl::Seconds(15)};
  // Waiting and looking together: less than what a client waits for an answer.
  absl::Duration longest = absl::Seconds(25);
  // How long a helper looks for a mesh, or at layouts, before it tells what it has by then.
  absl::Duration longest_search = absl::Seconds(2);

  int64_t cache_bytes = int64_t{16} << 20;  // of sizings that are kept; 0: none
  // How long it holds what a look at the files of a spec found, so that who submits hundreds of
  // jobs a second does not wait for as many looks. A file that is written anew within this time is
  // planned with as it was before, as if the job had been submitted just before that.
  absl::Duration look_holds = absl::Milliseconds(20);
};

// Sizes jobs in helper processes. Thread-safe.
//
// A sizing is kept, and serves the same spec again as long as the files that it names are the same:
// a helper looks at their times (file_identity.h), unless one did within `look_holds`, or at
// nothing where the spec names none. Errors are not kept. Of callers that ask for the same spec at
// the same time one asks a helper for all.
class Sizer {
 public:
  // Starts the helpers of the quick lane. kFailedPrecondition: the program is not there.
  static absl::StatusOr<std::unique_ptr<Sizer>> Start(const SizerOptions& options);

  // As SizeJob, of a serialized spec. Besides its errors, and like them with field and file:
  //   kInvalidArgument     the file takes more memory than a helper may have, or ended the helper
  //   kFailedPrecondition  reading it takes more time
  //   kUnavailable         no helper became free in time, it was killed from outside, or none can
  //                        be started: asking again may help; or it was not answered by `until`
  absl::StatusOr<Sizing> Size(const std::string& spec, SteadyTime until = SteadyTime::max(),
                              const FactsFrom& from = {});

  // As the functions of these names in executor/plan, of a serialized spec and the facts of its
  // sizing; with the errors of Size. A choice and layouts end early after `longest_search`, or
  // before `until`. Advice that does not come within some seconds is kUnavailable.
  absl::StatusOr<std::string> WhatFits(const std::string& spec, const plan::DataFacts& facts,
                                       int64_t slot_bytes, SteadyTime until = SteadyTime::max());
  absl::StatusOr<plan::ChosenMesh> ChooseMesh(const std::string& spec, const plan::DataFacts& facts,
                                              int64_t slot_bytes,
                                              SteadyTime until = SteadyTime::max());
  absl::StatusOr<std::vector<v1::LayoutPlan>> PlanLayouts(
      const std::string& spec, const plan::DataFacts& facts,
      const std::vector<plan::JobLayout>& layouts, const plan::Rates& rates,
      SteadyTime until = SteadyTime::max());

  // Ends all helpers; questions under way and later ones are kUnavailable. Idempotent.
  void Stop();

  // The process ids of the helpers that live now.
  std::vector<pid_t> Pids() const;

  // How many sizings helpers have made.
  int64_t made() const { return made_; }

 private:
  Sizer(const SizerOptions& options, const std::string& name, FileDescriptor program);

  absl::StatusOr<Sizing> Look(const std::string& key, const std::string& spec,
                              const FactsFrom& from, SteadyTime until);
  // Asks in `first`, and where its limits are too narrow in the patient lane.
  absl::StatusOr<sizing::Answer> AskHelpers(SizerLane& first, const sizing::Question& question,
                                            SteadyTime until);
  SteadyTime AtMost(SteadyTime until) const;

  const SizerOptions options_;
  const FileDescriptor program_;
  SizerLane quick_, planning_, patient_;
  SizingRounds rounds_;
  SizingCache cache_;
  std::atomic<int64_t> made_ = 0;
};

}  // namespace trainyard
