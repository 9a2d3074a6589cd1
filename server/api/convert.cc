#include "server/api/convert.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "executor/plan/spec/layout_change.h"
#include "executor/plan/spec/mesh.h"
#include "server/api/names.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

bool IsSet(absl::Time time) {
  return time != absl::InfinitePast() && time != absl::InfiniteFuture();
}

v1::Resources::Device DeviceOf(const std::string& name) {
  v1::Resources::Device device = v1::Resources::DEVICE_UNSPECIFIED;
  v1::Resources::Device_Parse(name, &device);
  return device;
}

struct FeedItemFiller {
  const FeedRecord& record;
  const std::string& job_name;
  v1::FeedItem& item;

  void operator()(const StateChangeRecord& change) const {
    if (change.from.has_value()) item.mutable_state()->set_from(ToProto(*change.from));
    item.mutable_state()->set_to(ToProto(change.to));
    *item.mutable_state()->mutable_reason() = ToProto(change.reason);
  }
  void operator()(const MetricRecord& metric) const { *item.mutable_metrics() = ToProto(metric); }
  void operator()(const CheckpointRecord& checkpoint) const {
    *item.mutable_checkpoint() = ToProto(checkpoint, job_name);
  }
  void operator()(const AttemptStartedRecord& started) const {
    item.mutable_attempt_started()->set_step(started.step);
    for (const std::string& node : started.nodes) {
      item.mutable_attempt_started()->add_nodes(node);
    }
  }
  void operator()(const NoticeRecord& notice) const {
    item.mutable_notice()->set_rank(notice.rank);
    v1::Notice& text = *item.mutable_notice()->mutable_notice();
    text.set_severity(notice.warning ? v1::Notice::WARNING : v1::Notice::INFO);
    text.set_message(notice.message);
  }
  void operator()(const MetricRun&) const {}  // stores give out single points
};

// `proto`: of a job or a gang.
template <typename Proto>
void FillLayout(const v1::JobSpec& spec, Proto& proto) {
  if (spec.parallel().has_layout()) *proto.mutable_layout() = spec.parallel().layout();
  proto.set_shard(plan::StateSharedOut(spec));
}

}  // namespace

void SetTimestamp(absl::Time time, google::protobuf::Timestamp& out) {
  const int64_t seconds = absl::ToUnixSeconds(time);
  out.set_seconds(seconds);
  out.set_nanos(
      static_cast<int32_t>((time - absl::FromUnixSeconds(seconds)) / absl::Nanoseconds(1)));
}

v1::JobState ToProto(JobState state) {
  v1::JobState proto = v1::JOB_STATE_UNSPECIFIED;
  TY_CHECK(v1::JobState_Parse(std::string(JobStateName(state)), &proto), JobStateName(state));
  return proto;
}

v1::Reason ToProto(const Reason& reason) {
  v1::Reason proto;
  proto.set_code(reason.code);
  proto.set_message(reason.message);
  return proto;
}

absl::StatusOr<v1::Job> ToProto(const JobRecord& job) {
  v1::Job proto;
  proto.set_name(FormatJobName({job.project, job.job_id}));
  if (!proto.mutable_spec()->ParseFromString(job.spec)) {
    return absl::InternalError(absl::StrCat(proto.name(), ": the stored spec cannot be read"));
  }
  if (!proto.mutable_plan()->ParseFromString(job.plan_summary)) {
    return absl::InternalError(absl::StrCat(proto.name(), ": the stored plan cannot be read"));
  }
  proto.set_job_id(job.job_id);
  proto.set_uid(job.uid);
  proto.set_etag(EtagOf(job));
  for (const auto& [key, value] : job.labels) (*proto.mutable_labels())[key] = value;
  proto.set_priority(job.priority);
  proto.set_state(ToProto(ShownState(job)));
  proto.set_slots(job.slots);
  proto.set_min_slots(job.min_slots);
  proto.set_max_slots(job.max_slots);
  proto.set_bytes_per_slot(job.bytes_per_slot);
  if (job.layout.empty()) {
    FillLayout(proto.spec(), proto);
  } else {
    v1::JobSpec spec = proto.spec();
    TY_RETURN_IF_ERROR(plan::SetLayout(job.layout, *spec.mutable_parallel()));
    FillLayout(spec, proto);
  }
  *proto.mutable_reason() = ToProto(job.reason);
  proto.set_creator(job.creator);
  if (IsSet(job.create_time)) SetTimestamp(job.create_time, *proto.mutable_create_time());
  if (IsSet(job.update_time)) SetTimestamp(job.update_time, *proto.mutable_update_time());
  if (IsSet(job.start_time)) SetTimestamp(job.start_time, *proto.mutable_start_time());
  if (IsSet(job.end_time)) SetTimestamp(job.end_time, *proto.mutable_end_time());
  proto.set_attempt(job.attempt);
  proto.set_restarts(job.restarts);
  proto.set_step(job.step);
  proto.set_total_steps(job.total_steps);
  proto.set_checkpoint(job.newest_checkpoint_uri);
  if (job.failure.has_value()) {
    v1::Failure::Category category = v1::Failure::INTERNAL;
    v1::Failure::Category_Parse(job.failure->category, &category);
    proto.mutable_failure()->set_category(category);
    proto.mutable_failure()->set_message(job.failure->message);
    proto.mutable_failure()->set_retryable(job.failure->retryable);
    proto.mutable_failure()->set_rolled_back(job.failure->rolled_back);
    proto.set_failed_rank(job.failure->rank);
    proto.set_failed_node(job.failure->node);
  }
  return proto;
}

v1::Checkpoint ToProto(const CheckpointRecord& checkpoint, const std::string& job_name) {
  v1::Checkpoint proto;
  proto.set_name(absl::StrCat(job_name, "/checkpoints/", checkpoint.step));
  proto.set_step(checkpoint.step);
  proto.set_attempt(checkpoint.attempt);
  proto.set_uri(checkpoint.uri);
  proto.set_bytes(checkpoint.bytes);
  proto.set_manifest_sha256(checkpoint.manifest_sha256);
  proto.set_weights_sha256(checkpoint.weights_sha256);
  proto.set_final(checkpoint.final);
  if (IsSet(checkpoint.create_time)) {
    SetTimestamp(checkpoint.create_time, *proto.mutable_create_time());
  }
  for (const auto& [name, value] : checkpoint.metrics) (*proto.mutable_metrics())[name] = value;
  return proto;
}

v1::MetricPoint ToProto(const MetricRecord& metric) {
  v1::MetricPoint proto;
  proto.set_step(metric.step);
  proto.set_split(metric.split == MetricSplit::kTrain ? v1::MetricPoint::TRAIN
                                                      : v1::MetricPoint::VALIDATION);
  for (const auto& [name, value] : metric.values) (*proto.mutable_values())[name] = value;
  return proto;
}

v1::AttemptMetricPoint ToProto(const MetricRow& row) {
  v1::AttemptMetricPoint proto;
  *proto.mutable_point() = ToProto(row.point);
  proto.set_attempt(row.attempt);
  proto.set_superseded(row.superseded);
  SetTimestamp(row.time, *proto.mutable_time());
  return proto;
}

v1::FeedItem ToProto(const FeedRecord& record, const std::string& job_name) {
  v1::FeedItem item;
  item.set_sequence(record.sequence);
  item.set_attempt(record.attempt);
  SetTimestamp(record.time, *item.mutable_time());
  std::visit(FeedItemFiller{record, job_name, item}, record.what);
  return item;
}

v1::Gang ToProto(const JobRecord& job, const AttemptRecord& attempt,
                 const std::vector<NodeRecord>& nodes, absl::Duration lease) {
  std::map<std::string, absl::Time> heard;  // by node
  for (const NodeRecord& node : nodes) heard[node.name] = node.lease_end - lease;
  v1::Gang gang;
  gang.set_job(FormatJobName({job.project, job.job_id}));
  gang.set_attempt(attempt.attempt);
  const absl::StatusOr<v1::JobSpec> spec = plan::SpecInLayout(job.spec, attempt.layout);
  if (spec.ok()) FillLayout(*spec, gang);
  for (const RankRecord& record : attempt.ranks) {
    v1::Gang::Rank& rank = *gang.add_ranks();
    rank.set_rank(record.id.rank);
    rank.set_node(absl::StrCat("nodes/", record.node));
    for (const int slot : record.slots) rank.add_slots(slot);
    v1::Gang::Rank::State state = v1::Gang::Rank::STATE_UNSPECIFIED;
    v1::Gang::Rank::State_Parse(std::string(RankStateName(record.state)), &state);
    rank.set_state(state);
    if (record.outcome != RankOutcome::kNone) {
      rank.set_outcome(std::string(RankOutcomeName(record.outcome)));
    }
    if (record.failure.has_value()) rank.set_failure(record.failure->message);
    if (record.state == RankState::kRunning) rank.set_step(job.step);
    const auto node = heard.find(record.node);
    if (IsOver(record.state)) {
      if (IsSet(record.gone_time)) SetTimestamp(record.gone_time, *rank.mutable_last_heard_time());
    } else if (node != heard.end()) {
      SetTimestamp(node->second, *rank.mutable_last_heard_time());
    }
  }
  return gang;
}

v1::SlotUsage ToProto(const SlotUsage& usage) {
  v1::SlotUsage proto;
  proto.set_utilization(usage.utilization);
  proto.set_memory_used_bytes(usage.memory_used_bytes);
  proto.set_temperature_celsius(usage.temperature_celsius);
  proto.set_power_watts(usage.power_watts);
  proto.set_last_xid(usage.last_xid);
  return proto;
}

namespace {

v1::NodeReport ToProto(const NodeReport& report) {
  v1::NodeReport proto;
  proto.set_disk_free_bytes(report.disk_free_bytes.value_or(0));
  proto.set_disk_total_bytes(report.disk_total_bytes.value_or(0));
  proto.set_state_dir(report.state_dir);
  proto.set_memory_free_bytes(report.memory_free_bytes.value_or(0));
  proto.set_memory_total_bytes(report.memory_total_bytes.value_or(0));
  proto.set_failed_starts(report.failed_starts);
  proto.set_failed_writes(report.failed_writes);
  return proto;
}

}  // namespace

v1::Node ToProto(const NodeRecord& node, const SchedulerSnapshot& snapshot) {
  std::map<std::string, std::string> names;  // of jobs, by uid
  for (const JobRecord& job : snapshot.jobs) {
    names[job.uid] = FormatJobName({job.project, job.job_id});
  }
  std::map<int, std::string> holders;  // by slot
  for (const AttemptRecord& attempt : snapshot.attempts) {
    for (const RankRecord& rank : attempt.ranks) {
      if (rank.node != node.name || IsOver(rank.state)) continue;
      for (int slot : rank.slots) holders[slot] = names[attempt.job_uid];
    }
  }
  v1::Node proto;
  proto.set_name(absl::StrCat("nodes/", node.name));
  const bool ready = node.reachable && node.lease_end > snapshot.now;
  proto.set_cordon_reason(ready ? CordonReason(node) : "");
  proto.set_state(!ready                          ? v1::Node::UNREACHABLE
                  : proto.cordon_reason().empty() ? v1::Node::READY
                                                  : v1::Node::CORDONED);
  proto.set_draining(node.draining);
  if (node.leave_time != absl::InfiniteFuture()) {
    SetTimestamp(node.leave_time, *proto.mutable_leave_time());
  }
  for (const SlotRecord& record : node.slots) {
    v1::Slot& slot = *proto.add_slots();
    slot.set_index(record.index);
    slot.set_device(DeviceOf(record.device));
    slot.set_model(record.model);
    slot.set_memory_bytes(record.memory_bytes);
    slot.set_cpu_threads(record.cpu_threads);
    if (!record.arithmetic.empty()) {
      slot.mutable_arithmetic()->mutable_values()->insert(record.arithmetic.begin(),
                                                          record.arithmetic.end());
    }
    const auto holder = holders.find(record.index);
    if (holder != holders.end()) slot.set_job(holder->second);
    const auto used =
        std::find_if(node.report.usage.begin(), node.report.usage.end(),
                     [&](const SlotUsage& usage) { return usage.index == record.index; });
    if (ready && used != node.report.usage.end()) *slot.mutable_usage() = ToProto(*used);
  }
  proto.set_address(node.address);
  for (const auto& [key, value] : node.labels) (*proto.mutable_labels())[key] = value;
  if (IsSet(node.lease_end)) SetTimestamp(node.lease_end, *proto.mutable_lease_end_time());
  if (IsSet(node.create_time)) SetTimestamp(node.create_time, *proto.mutable_create_time());
  proto.set_agent_version(node.agent_version);
  if (ready) *proto.mutable_report() = ToProto(node.report);
  for (const NodeFailure& record : node.failures) {
    v1::NodeFailure& failure = *proto.add_failures();
    failure.set_job_id(record.job_id);
    failure.set_attempt(record.attempt);
    failure.set_category(record.category);
    SetTimestamp(record.time, *failure.mutable_time());
  }
  for (const LostRank& record : node.lost_ranks) {
    v1::LostRank& lost = *proto.add_lost_ranks();
    lost.set_job_uid(record.id.job_uid);
    lost.set_attempt(record.id.attempt);
    lost.set_rank(record.id.rank);
    for (const int slot : record.slots) lost.add_slots(slot);
    SetTimestamp(record.time, *lost.mutable_lost_time());
    lost.set_holds_slots(MayHoldSlots(node, record));
  }
  return proto;
}

absl::StatusOr<v1::ExplainJobResponse> ToProto(const JobRecord& job,
                                               const Explanation& explanation) {
  v1::ExplainJobResponse proto;
  TY_ASSIGN_OR_RETURN(*proto.mutable_job(), ToProto(job));
  *proto.mutable_reason() = ToProto(explanation.reason);
  proto.set_queue_position(explanation.queue_position);
  for (const std::string& name : explanation.ahead) proto.add_ahead(name);
  if (IsSet(explanation.earliest_start)) {
    SetTimestamp(explanation.earliest_start, *proto.mutable_earliest_start());
  }
  for (const std::string& text : explanation.details) proto.add_details(text);
  for (const std::string& text : explanation.suggestions) proto.add_suggestions(text);
  return proto;
}

}  // namespace trainyard
