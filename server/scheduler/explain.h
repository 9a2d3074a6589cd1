#pragma once

// Why a job is where it is, in sentences: from the planner's own pass, so that it can never say
// something else than what is done. Pure.

#include <string>
#include <vector>

#include "server/scheduler/planner.h"

namespace trainyard {

struct Explanation {
  Reason reason;
  int queue_position = 0;                              // from 1; 0 when not queued
  std::vector<std::string> ahead;                      // at most kMostAhead
  absl::Time earliest_start = absl::InfiniteFuture();  // infinite: not known
  std::vector<std::string> details;
  std::vector<std::string> suggestions;
};

// `attempts` of the job, oldest first. Advice is given only where `accepts` accepts what comes of
// it.
Explanation Explain(const JobRecord& job, const std::vector<AttemptRecord>& attempts,
                    const SchedulerSnapshot& snapshot, const PlannerOptions& options,
                    const AcceptsSpec& accepts = {});

}  // namespace trainyard
