#pragma once

// Records to the messages that clients see. Pure; the one place where both are known.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/scheduler/explain.h"
#include "storage/records/feed.h"
#include "storage/records/node.h"
#include "storage/scheduler_store.h"
#include "trainyard/v1/job_service.pb.h"
#include "trainyard/v1/run_services.pb.h"

namespace trainyard {

void SetTimestamp(absl::Time time, google::protobuf::Timestamp& out);

v1::JobState ToProto(JobState state);
v1::Reason ToProto(const Reason& reason);
// kInternal: the stored spec or plan cannot be read.
absl::StatusOr<v1::Job> ToProto(const JobRecord& job);
v1::Checkpoint ToProto(const CheckpointRecord& checkpoint, const std::string& job_name);
v1::MetricPoint ToProto(const MetricRecord& metric);
v1::AttemptMetricPoint ToProto(const MetricRow& row);
v1::FeedItem ToProto(const FeedRecord& item, const std::string& job_name);
// `nodes` say when its nodes were heard of last: `lease` before their leases end.
v1::Gang ToProto(const JobRecord& job, const AttemptRecord& attempt,
                 const std::vector<NodeRecord>& nodes, absl::Duration lease);
// With the jobs that hold its slots.
v1::Node ToProto(const NodeRecord& node, const SchedulerSnapshot& snapshot);
absl::StatusOr<v1::ExplainJobResponse> ToProto(const JobRecord& job,
                                               const Explanation& explanation);

}  // namespace trainyard
