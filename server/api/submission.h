#pragma once

// What is checked of a submission before anything is written. Pure.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/sizing/size_job.h"
#include "storage/records/job.h"
#include "storage/records/node.h"
#include "trainyard/v1/job_service.pb.h"

namespace trainyard {

// Checks every field of the request and makes the job of it, its spec with the defaults; `parent`
// counts in place of the request's. No file is read yet: `plan_summary` and `bytes_per_slot` are
// empty. kInvalidArgument and kUnimplemented name the field.
absl::StatusOr<JobRecord> CheckSubmission(const v1::SubmitJobRequest& request,
                                          const std::string& parent, const std::string& creator);

// Whether CheckSubmission would accept a job of this spec.
bool IsAccepted(const v1::JobSpec& spec);

// Fills in the spec, which comes from ResolveSpec, and all that a job has of it.
void SetSpec(JobRecord& job, const v1::JobSpec& spec);

// Fills in `plan_summary`, `bytes_per_slot` and `total_steps`.
void SetSizing(JobRecord& job, const Sizing& sizing);

// The memory that each slot of the job's smallest gang can have, on the nodes that ever registered;
// 0: they have not so many slots of one kind.
int64_t LargestGangSlot(const JobRecord& job, const std::vector<NodeRecord>& nodes);

// kFailedPrecondition: all nodes that ever registered, even if they were present and idle, have too
// few slots of one kind that are large enough for the job's smallest gang. The message says what
// would fit, as `what_fits` says it of the largest slot.
// While no node ever registered, the job is accepted and waits, as it does for nodes that are away,
// draining or busy.
absl::Status CheckFits(const JobRecord& job, const std::vector<NodeRecord>& nodes,
                       absl::FunctionRef<std::string(int64_t slot_bytes)> what_fits);

}  // namespace trainyard
