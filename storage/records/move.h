#pragma once

#include "storage/records/change.h"

namespace trainyard {

// Makes one transition of kJobTransitions: sets state, reason, version and times, and adds the feed
// item. An illegal transition is a defect. Only for the pure functions of change.h.
void MoveJob(JobChange& change, JobTrigger trigger, const Reason& reason, absl::Time now);

}  // namespace trainyard
