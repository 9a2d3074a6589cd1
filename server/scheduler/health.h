#pragma once

// What a pass does about nodes that are sick, jobs that take their nodes down, and starts that
// hang. Pure; which failures mean what stands in storage/records/node_health.h.

#include <string>
#include <vector>

#include "server/scheduler/pass_steps.h"

namespace trainyard {

// Adds cordons, charges and failed starts to the decisions.
void LookAtHealth(const Cluster& cluster, Pass& pass);

// Whether the node has a loss that a job may have to pay for, once another job runs there.
bool MayBeCharged(const NodeRecord& node);

// "rank 1 on nodes/n: its worker has not been heard of; nodes/n said last: …", of each rank of a
// job that is STARTING which has not begun.
std::vector<std::string> DescribeStart(const AttemptRecord& attempt,
                                       const std::vector<const NodeRecord*>& nodes);

}  // namespace trainyard
