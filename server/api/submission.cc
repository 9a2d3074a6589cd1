#include "server/api/submission.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "server/api/names.h"
#include "server/scheduler/slots.h"
#include "server/scheduler/spec_changes.h"
#include "storage/base/field_error.h"
#include "storage/base/ids.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "storage/records/change.h"

namespace trainyard {
namespace {

constexpr int kMostLabels = 64;
constexpr size_t kLargestSpec = 256 * 1024;
// With its defaults, and braces expanded: an agent is told of all ranks of its node in one message
// of at most 16 MiB.
constexpr size_t kLargestResolvedSpec = 1024 * 1024;

// Refuses fields that only the server writes: those from number 20 on, name, uid and etag.
absl::Status CheckServerOnlyFields(const v1::Job& job) {
  std::vector<const google::protobuf::FieldDescriptor*> set;
  job.GetReflection()->ListFields(job, &set);
  for (const google::protobuf::FieldDescriptor* field : set) {
    const std::string& name = field->name();
    if (field->number() >= 20 || name == "name" || name == "uid" || name == "etag") {
      return absl::InvalidArgumentError(
          absl::StrCat("job.", name, ": only the server writes it; leave it out"));
    }
  }
  return absl::OkStatus();
}

ArithmeticRule RuleOf(v1::Parallel::Arithmetic arithmetic) {
  if (arithmetic == v1::Parallel::ANY) return ArithmeticRule::kAny;
  if (arithmetic == v1::Parallel::SAME) return ArithmeticRule::kSame;
  return ArithmeticRule::kSameInAttempt;
}

bool IsLabelKey(absl::string_view key) {
  if (key.empty() || key.size() > 63 || !absl::ascii_islower(key[0])) return false;
  return std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || absl::StrContains("-_./", c);
  });
}

absl::Status CheckLabels(const v1::Job& job) {
  if (job.labels_size() > kMostLabels) {
    return FieldError("job.labels", absl::StrCat(job.labels_size(), " labels"),
                      absl::StrCat("at most ", kMostLabels));
  }
  for (const auto& [key, value] : job.labels()) {
    if (!IsLabelKey(key)) {
      return FieldError("job.labels",
                        absl::StrCat("'", absl::Utf8SafeCEscape(key.substr(0, 80)), "'"),
                        "keys of the form [a-z][a-z0-9-_./]{0,62}");
    }
    const bool printable =
        std::none_of(value.begin(), value.end(), [](char c) { return absl::ascii_iscntrl(c); });
    if (value.size() > 128 || !printable) {
      return FieldError(absl::StrCat("job.labels.", key), absl::StrCat(value.size(), " bytes"),
                        "at most 128 bytes without control characters");
    }
  }
  return absl::OkStatus();
}

// Equal specs give equal bytes, maps included: a replay is known by them.
std::string Serialize(const v1::JobSpec& spec) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  spec.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

std::string FamilyOf(const v1::JobSpec& spec) {
  const google::protobuf::OneofDescriptor* family =
      v1::Model::descriptor()->FindOneofByName("family");
  const google::protobuf::FieldDescriptor* field =
      spec.model().GetReflection()->GetOneofFieldDescriptor(spec.model(), family);
  return field == nullptr ? "job" : field->name();
}

absl::StatusOr<v1::JobSpec> CheckSpec(const v1::JobSpec& given) {
  if (given.ByteSizeLong() > kLargestSpec) {
    return FieldError("job.spec", absl::StrCat(given.ByteSizeLong(), " bytes"),
                      absl::StrCat("at most ", kLargestSpec));
  }
  TY_ASSIGN_OR_RETURN(v1::JobSpec spec, plan::ResolveSpec(given));
  if (spec.ByteSizeLong() > kLargestResolvedSpec) {
    return FieldError(
        "job.spec",
        absl::StrCat(spec.ByteSizeLong(), " bytes with every archive of spec.data named"),
        absl::StrCat("at most ", kLargestResolvedSpec, "; use fewer archives"));
  }
  return spec;
}

}  // namespace

bool IsAccepted(const v1::JobSpec& spec) { return CheckSpec(spec).ok(); }

absl::StatusOr<JobRecord> CheckSubmission(const v1::SubmitJobRequest& request,
                                          const std::string& parent, const std::string& creator) {
  JobRecord record;
  TY_ASSIGN_OR_RETURN(record.project, ParseProjectName("parent", parent, false));
  TY_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  if (!request.has_job()) return absl::InvalidArgumentError("job: missing");
  const v1::Job& job = request.job();
  TY_RETURN_IF_ERROR(CheckServerOnlyFields(job));
  if (!job.job_id().empty() && !IsResourceId(job.job_id())) {
    return FieldError("job.job_id",
                      absl::StrCat("'", absl::Utf8SafeCEscape(job.job_id().substr(0, 80)), "'"),
                      "[a-z]([a-z0-9-]{0,61}[a-z0-9])?");
  }
  TY_RETURN_IF_ERROR(CheckLabels(job));
  if (job.priority() < -1000 || job.priority() > 1000) {
    return FieldError("job.priority", job.priority(), "-1000 to 1000");
  }
  if (!job.has_spec()) return absl::InvalidArgumentError("job.spec: missing");
  TY_ASSIGN_OR_RETURN(const v1::JobSpec spec, CheckSpec(job.spec()));

  record.uid = RandomHex(16);
  record.job_id = job.job_id();
  if (record.job_id.empty()) {
    // A replay must ask for the same job.
    record.job_id = request.request_id().empty()
                        ? MakeJobId(FamilyOf(spec))
                        : JobIdForRequest(FamilyOf(spec), record.project, request.request_id());
  }
  record.creator = creator;
  record.request_id = request.request_id();
  SetSpec(record, spec);
  record.labels = {job.labels().begin(), job.labels().end()};
  record.priority = job.priority();
  record.reason = SubmittedReason();
  return record;
}

void SetSpec(JobRecord& job, const v1::JobSpec& spec) {
  job.spec = Serialize(spec);
  job.min_slots = std::max(1, spec.resources().min_slots());
  job.max_slots = std::max(job.min_slots, spec.resources().max_slots());
  job.logical_ranks = spec.parallel().logical_ranks();
  job.group_ranks = std::max(1, spec.parallel().layout().tensor());
  job.slot_step = static_cast<int>(plan::RanksInGroup(spec.parallel()));
  job.arithmetic_rule = RuleOf(spec.parallel().arithmetic());
  job.second_owner = spec.parallel().second_owner();
  if (spec.resources().device() != v1::Resources::DEVICE_UNSPECIFIED) {
    job.device = v1::Resources::Device_Name(spec.resources().device());
  }
  job.max_restarts = spec.retry().max_restarts();
  job.backoff = absl::Seconds(spec.retry().backoff_seconds());
}

void SetSizing(JobRecord& job, const Sizing& sizing) {
  job.plan_summary = sizing.summary.SerializeAsString();
  job.bytes_per_slot = sizing.summary.bytes_per_slot();
  job.total_steps = sizing.summary.total_steps();
}

int64_t LargestGangSlot(const JobRecord& job, const std::vector<NodeRecord>& nodes) {
  std::map<std::string, std::vector<int64_t>> memory;  // of slots, by kind: a gang is of one kind
  for (const NodeRecord& node : nodes) {
    for (const SlotRecord& slot : node.slots) {
      if (job.device.empty() || slot.device == job.device) {
        memory[slot.device].push_back(slot.memory_bytes);
      }
    }
  }
  int64_t largest = 0;
  const auto fewest = static_cast<size_t>(job.min_slots);
  for (auto& [device, slots] : memory) {
    if (slots.size() < fewest) continue;
    std::sort(slots.begin(), slots.end(), std::greater<>());
    largest = std::max(largest, slots[fewest - 1]);
  }
  return largest;
}

absl::Status CheckFits(const JobRecord& job, const std::vector<NodeRecord>& nodes,
                       absl::FunctionRef<std::string(int64_t slot_bytes)> what_fits) {
  int64_t largest = 0;  // of the right kind
  int matching = 0;
  int all = 0;
  std::map<std::string, int> gang_slots;  // large enough, by kind: a gang is of one kind
  for (const NodeRecord& node : nodes) {
    for (const SlotRecord& slot : node.slots) {
      ++all;
      if (!job.device.empty() && slot.device != job.device) continue;
      ++matching;
      largest = std::max(largest, slot.memory_bytes);
      if (slot.memory_bytes >= job.bytes_per_slot) ++gang_slots[slot.device];
    }
  }
  if (all == 0) return absl::OkStatus();
  if (matching == 0) {
    const SpecChanges changes(job, IsAccepted);
    return absl::FailedPreconditionError(absl::StrCat(
        "spec.resources.device: no node that ever registered has a ", job.device, " slot (", all,
        " of another kind); ", changes.MayHaveAnyDevice() ? "leave device out, or " : "",
        "connect such a node first"));
  }
  if (largest < job.bytes_per_slot) {
    return absl::FailedPreconditionError(
        absl::StrCat("spec.model: needs ", DescribeBytes(job.bytes_per_slot), " per slot",
                     job.device == "CUDA" ? " (of a GPU in part an estimate)" : "",
                     ", but the largest ", job.device, job.device.empty() ? "" : " ", "slot has ",
                     DescribeBytes(largest), "; ", what_fits(largest)));
  }
  int widest = 0;
  for (const auto& [device, count] : gang_slots) widest = std::max(widest, count);
  if (widest < job.min_slots) {
    const SpecChanges changes(job, IsAccepted);
    const int most = changes.MostSlots(widest);
    return absl::FailedPreconditionError(absl::StrCat(
        "spec.resources.min_slots: needs ", DescribeDemand(WholeDemandOf(job)),
        ", but all nodes that ever registered have ", widest, " such together; ",
        most > 0 ? absl::StrCat("min_slots ", changes.NeedsMaxSlots(most) ? "and max_slots " : "",
                                "of at most ", most, " would fit, or ")
                 : "",
        "connect more nodes first"));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
