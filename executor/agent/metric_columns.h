#pragma once

#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// Packs consecutive metric points of the same split and names into columns instead of one message
// per point. Pure. The worker's own log keeps one record per point, so that each is there as soon
// as its step is done and survives whoever is killed.
v1::EventBatch PackMetrics(v1::EventBatch batch);

}  // namespace trainyard
