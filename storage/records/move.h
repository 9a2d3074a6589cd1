#pragma once

#include "storage/records/change.h"

namespace trainyard {

// Follows one arrow of kJobTransitions: state, reason, version, times, feed item. An illegal one is
// a defect. Only for the pure functions of change.h.
void MoveJob(JobChange& change, JobTrigger trigger, const Reason& reason, absl::Time now);

}  // namespace trainyard
