#pragma once

// What SubmitJob checks before anything is written.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/plan/facts.h"
#include "storage/records/job.h"
#include "storage/records/node.h"
#include "trainyard/v1/job_service.pb.h"

namespace trainyard {

// Every field of the request, the spec with its defaults. No file is read yet: `plan_summary` and
// `bytes_per_slot` are empty. kInvalidArgument and kUnimplemented name the field.
absl::StatusOr<JobRecord> CheckSubmission(const v1::SubmitJobRequest& request,
                                          const std::string& creator);

// Sizes the job: reads the facts of its data (or takes what the spec declares), plans a step, fills
// in `plan_summary`, `bytes_per_slot` and `total_steps`; returns the facts.
//   kInvalidArgument  a file that cannot be read and whose facts are not declared, a model that
//                     does not fit its data, weights to begin with that do not fit the model: names
//                     the field. A folder of weights that the server does not see is left to the
//                     worker.
absl::StatusOr<plan::DataFacts> PlanSubmission(JobRecord& job);

// kFailedPrecondition: the nodes that ever registered, were all of them there and idle, have too
// few slots of one kind that are large enough for the job's smallest gang; says what would fit, by
// planning it with `facts`.
// Without any node the job is let in and waits, as it does for nodes that are away, draining or
// busy.
absl::Status CheckFits(const JobRecord& job, const plan::DataFacts& facts,
                       const std::vector<NodeRecord>& nodes);

}  // namespace trainyard
