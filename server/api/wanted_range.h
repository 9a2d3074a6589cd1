#pragma once

// What ResizeJob asks for. Pure: whether it fits is checked later.

#include "absl/status/statusor.h"
#include "storage/records/job.h"
#include "trainyard/v1/job_service.pb.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {

struct WantedRange {
  // With the layout that the job has then, and the bytes of a slot that it has now.
  SlotRange range;
  v1::JobSpec spec;  // of the job, with the range and the layout; resolved
  bool changes = false;
};

// What a check says of a field of the spec that ResizeJobRequest has as its own, said of that one.
absl::Status OfResizeRequest(const absl::Status& status);

// kInvalidArgument, with the field of the request: the job cannot have it.
absl::StatusOr<WantedRange> WantedRangeOf(const v1::ResizeJobRequest& request,
                                          const JobRecord& job);

}  // namespace trainyard
