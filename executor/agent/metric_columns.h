#pragma once

#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// The batch with metrics that follow each other (same split, same names) in columns in place of a
// message per point. Pure. The worker's own log keeps a record per point: each is there as soon as
// its step is done, and stays whoever is killed.
v1::EventBatch PackMetrics(v1::EventBatch batch);

}  // namespace trainyard
