#include "server/fleet/decode.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "storage/base/digest.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

constexpr int kMostSlots = 1024;
constexpr int kMostFound = 4096;
constexpr double kMostCelsius = 1000, kMostWatts = 1e5;
constexpr size_t kMostPathBytes = 1024;
constexpr int kMostLabels = 64;
constexpr int kMostValues = 64;  // metrics of one point
constexpr int kMostColumnPoints = 1 << 16;
constexpr size_t kLongestText = 4096;  // messages and evidence are cut, URIs are refused
constexpr int64_t kMostSteps = int64_t{1} << 53;
constexpr int64_t kMostBytes = int64_t{1} << 60;

bool IsNodeName(absl::string_view name) {
  const auto plain = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  if (name.empty() || name.size() > 63 || !plain(name.front()) || !plain(name.back())) return false;
  for (char c : name) {
    if (!plain(c) && c != '.' && c != '-') return false;
  }
  return true;
}

bool IsPrintable(absl::string_view text, size_t longest) {
  if (text.empty() || text.size() > longest) return false;
  for (unsigned char c : text) {
    if (c < 0x20 || c == 0x7f) return false;
  }
  return true;
}

bool IsHexDigest(absl::string_view text) {
  if (text.size() != 64) return false;
  for (char c : text) {
    if (!absl::ascii_isdigit(c) && !(c >= 'a' && c <= 'f')) return false;
  }
  return true;
}

// For people: cut at a code point, without NUL (the database stores none).
std::string Readable(absl::string_view text) {
  if (text.size() > kLongestText) {
    size_t end = kLongestText;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  std::string readable(text);
  for (char& c : readable) {
    if (c == '\0') c = '?';
  }
  return readable;
}

absl::Status Wrong(absl::string_view field, absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": found ", found, ", expected ", expected));
}

absl::Status CheckStep(absl::string_view field, int64_t step, int64_t least) {
  if (step >= least && step <= kMostSteps) return absl::OkStatus();
  return Wrong(field, absl::StrCat(step), absl::StrCat("a step in [", least, ", 2^53]"));
}

absl::StatusOr<SlotRecord> DecodeSlot(const v1::Slot& slot, int position) {
  const std::string field = absl::StrCat("register.slots[", position, "]");
  if (slot.index() < 0 || slot.index() >= kMostSlots) {
    return Wrong(field + ".index", absl::StrCat(slot.index()), "0 to 1023");
  }
  if (slot.memory_bytes() <= 0 || slot.memory_bytes() > kMostBytes) {
    return Wrong(field + ".memory_bytes", absl::StrCat(slot.memory_bytes()), "a positive size");
  }
  if (slot.device() != v1::Resources::CPU && slot.device() != v1::Resources::CUDA) {
    return Wrong(field + ".device", absl::StrCat(slot.device()), "CPU or CUDA");
  }
  if (slot.cpu_threads() < 0 || slot.cpu_threads() > 4096) {
    return Wrong(field + ".cpu_threads", absl::StrCat(slot.cpu_threads()), "0 to 4096");
  }
  return SlotRecord{.index = slot.index(),
                    .device = v1::Resources::Device_Name(slot.device()),
                    .model = Readable(slot.model()),
                    .memory_bytes = slot.memory_bytes(),
                    .cpu_threads = slot.cpu_threads()};
}

absl::StatusOr<std::map<std::string, double>> DecodeValues(
    const std::string& field, const google::protobuf::Map<std::string, double>& values) {
  if (values.size() > kMostValues) {
    return Wrong(field, absl::StrCat(values.size(), " values"), "at most 64");
  }
  std::map<std::string, double> decoded;
  for (const auto& [name, value] : values) {
    if (!IsPrintable(name, 64)) {
      return Wrong(field, absl::StrCat("a name of ", name.size(), " bytes"),
                   "1 to 64 printable characters");
    }
    decoded[name] = value;
  }
  return decoded;
}

absl::StatusOr<MetricRecord> DecodeMetrics(const v1::MetricPoint& point) {
  TY_RETURN_IF_ERROR(CheckStep("metrics.step", point.step(), 1));
  MetricRecord record{.step = point.step()};
  switch (point.split()) {
    case v1::MetricPoint::TRAIN:
      record.split = MetricSplit::kTrain;
      break;
    case v1::MetricPoint::VALIDATION:
      record.split = MetricSplit::kValidation;
      break;
    default:
      return Wrong("metrics.split", absl::StrCat(point.split()), "TRAIN or VALIDATION");
  }
  if (point.values().empty()) return Wrong("metrics.values", "0 values", "1 to 64");
  TY_ASSIGN_OR_RETURN(record.values, DecodeValues("metrics.values", point.values()));
  return record;
}

// A worker's clock may be anything; the database takes years 1 to 9999 and some.
absl::Time DecodeTime(int64_t micros) {
  constexpr int64_t kYear9999 = int64_t{253402300799} * 1000000;
  return absl::FromUnixMicros(std::clamp<int64_t>(micros, 0, kYear9999));
}

absl::StatusOr<MetricRun> DecodeColumns(const v1::MetricColumns& columns) {
  const int points = columns.steps_size();
  if (points < 1 || points > kMostColumnPoints) {
    return Wrong("columns.steps", absl::StrCat(points), "1 to 65536");
  }
  if (columns.time_deltas_us_size() != points) {
    return Wrong("columns.time_deltas_us", absl::StrCat(columns.time_deltas_us_size()),
                 absl::StrCat(points, ", one per step"));
  }
  if (columns.columns_size() < 1 || columns.columns_size() > static_cast<int>(kMostValues)) {
    return Wrong("columns.columns", absl::StrCat(columns.columns_size()), "1 to 64");
  }
  MetricRun run;
  switch (columns.split()) {
    case v1::MetricPoint::TRAIN:
      run.split = MetricSplit::kTrain;
      break;
    case v1::MetricPoint::VALIDATION:
      run.split = MetricSplit::kValidation;
      break;
    default:
      return Wrong("columns.split", absl::StrCat(columns.split()), "TRAIN or VALIDATION");
  }
  uint64_t time_us = 0;
  for (int i = 0; i < points; ++i) {
    TY_RETURN_IF_ERROR(CheckStep("columns.steps", columns.steps(i), 1));
    time_us += static_cast<uint64_t>(columns.time_deltas_us(i));
    run.times.push_back(DecodeTime(static_cast<int64_t>(time_us)));
  }
  run.steps.assign(columns.steps().begin(), columns.steps().end());
  for (const v1::MetricColumns::Column& column : columns.columns()) {
    if (!IsPrintable(column.name(), 64)) {
      return Wrong("columns.columns", absl::StrCat("a name of ", column.name().size(), " bytes"),
                   "1 to 64 printable characters");
    }
    if (!run.names.empty() && column.name() <= run.names.back()) {
      return Wrong("columns.columns", column.name(), "names in order, each once");
    }
    if (column.values_size() != points) {
      return Wrong(absl::StrCat("columns.columns.", column.name()),
                   absl::StrCat(column.values_size(), " values"),
                   absl::StrCat(points, ", one per step"));
    }
    run.names.push_back(column.name());
    run.values.emplace_back(column.values().begin(), column.values().end());
  }
  return run;
}

// Where the files of a job's checkpoints may lie: what CheckpointRootOf (assignment.h) gives the
// job `uid` below `root`. Anything else would make the server, or who restores from it, read and
// delete what is none of the job's.
absl::Status CheckLiesUnderJob(const std::string& uri, const std::string& root,
                               const std::string& uid) {
  const std::string base = absl::StrCat(absl::StripSuffix(root, "/"), "/");
  const auto expected = [&] {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.uri: found ", Printable(uri),
                                                      ", expected a folder below ", base,
                                                      "{project}/{job}-", uid.substr(0, 8), "/"));
  };
  if (!absl::StartsWith(uri, base)) return expected();
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::string_view(uri).substr(base.size()), '/');
  for (absl::string_view part : parts) {
    if (part.empty() || part == "." || part == "..") return expected();
  }
  // Project, job and at least one folder of its own.
  if (parts.size() < 3 || !absl::EndsWith(parts[1], absl::StrCat("-", uid.substr(0, 8)))) {
    return expected();
  }
  return absl::OkStatus();
}

// What a batch's events are held against.
struct RankContext {
  const std::string& checkpoint_root;
  const std::string& job_uid;
};

absl::StatusOr<CheckpointWritten> DecodeCheckpoint(const v1::RankEvent::CheckpointWritten& written,
                                                   const RankContext& rank) {
  TY_RETURN_IF_ERROR(CheckStep("checkpoint.step", written.step(), 0));
  if (!IsPrintable(written.uri(), kLongestText)) {
    return Wrong("checkpoint.uri", absl::StrCat(written.uri().size(), " bytes"),
                 "1 to 4096 printable characters");
  }
  TY_RETURN_IF_ERROR(CheckLiesUnderJob(written.uri(), rank.checkpoint_root, rank.job_uid));
  if (written.bytes() < 0 || written.bytes() > kMostBytes) {
    return Wrong("checkpoint.bytes", absl::StrCat(written.bytes()), "a size");
  }
  if (!IsHexDigest(written.manifest_sha256())) {
    return Wrong("checkpoint.manifest_sha256",
                 absl::StrCat(written.manifest_sha256().size(), " bytes"), "64 hex digits");
  }
  if (!IsHexDigest(written.weights_sha256())) {
    return Wrong("checkpoint.weights_sha256",
                 absl::StrCat(written.weights_sha256().size(), " bytes"), "64 hex digits");
  }
  CheckpointWritten record;
  record.checkpoint = {.step = written.step(),
                       .uri = written.uri(),
                       .bytes = written.bytes(),
                       .manifest_sha256 = written.manifest_sha256(),
                       .weights_sha256 = written.weights_sha256(),
                       .final = written.final()};
  TY_ASSIGN_OR_RETURN(record.checkpoint.metrics,
                      DecodeValues("checkpoint.metrics", written.metrics()));
  for (const auto& [name, value] : record.checkpoint.metrics) {
    if (!std::isfinite(value)) {
      return Wrong(absl::StrCat("checkpoint.metrics.", name), absl::StrCat(value),
                   "a finite number");
    }
  }
  if (written.removed_uris_size() > 1024) {
    return Wrong("checkpoint.removed_uris", absl::StrCat(written.removed_uris_size()),
                 "at most 1024");
  }
  for (const std::string& uri : written.removed_uris()) {
    if (!IsPrintable(uri, kLongestText)) {
      return Wrong("checkpoint.removed_uris", absl::StrCat(uri.size(), " bytes"),
                   "1 to 4096 printable characters");
    }
    record.removed_uris.push_back(uri);
  }
  return record;
}

absl::StatusOr<FailureRecord> DecodeFailure(const v1::Failure& failure) {
  if (failure.category() == v1::Failure::CATEGORY_UNSPECIFIED ||
      !v1::Failure::Category_IsValid(failure.category())) {
    return Wrong("failure.category", absl::StrCat(failure.category()), "a category");
  }
  return FailureRecord{.category = v1::Failure::Category_Name(failure.category()),
                       .message = Readable(failure.message()),
                       .retryable = failure.retryable(),
                       .rolled_back = failure.rolled_back()};
}

absl::StatusOr<RankEventRecord> DecodeEvent(const v1::RankEvent& event, const RankContext& rank) {
  RankEventRecord record;
  switch (event.what_case()) {
    case v1::RankEvent::kStarted:
      record.what =
          RankStarted{.pid = event.started().pid(), .device = Readable(event.started().device())};
      break;
    case v1::RankEvent::kRestored:
      TY_RETURN_IF_ERROR(CheckStep("restored.step", event.restored().step(), 0));
      record.what = RankRestored{.step = event.restored().step()};
      break;
    case v1::RankEvent::kMetrics: {
      TY_ASSIGN_OR_RETURN(record.what, DecodeMetrics(event.metrics()));
      break;
    }
    case v1::RankEvent::kColumns: {
      TY_ASSIGN_OR_RETURN(record.what, DecodeColumns(event.columns()));
      break;
    }
    case v1::RankEvent::kCheckpoint: {
      TY_ASSIGN_OR_RETURN(record.what, DecodeCheckpoint(event.checkpoint(), rank));
      break;
    }
    case v1::RankEvent::kNotice:
      record.what = NoticeRecord{.warning = event.notice().severity() == v1::Notice::WARNING,
                                 .message = Readable(event.notice().message())};
      break;
    case v1::RankEvent::kFailure: {
      TY_ASSIGN_OR_RETURN(record.what, DecodeFailure(event.failure()));
      break;
    }
    case v1::RankEvent::kFinished:
      TY_RETURN_IF_ERROR(CheckStep("finished.step", event.finished().step(), 0));
      if (event.finished().outcome() != v1::RankEvent::Finished::SUCCEEDED &&
          event.finished().outcome() != v1::RankEvent::Finished::SUSPENDED) {
        return Wrong("finished.outcome", absl::StrCat(event.finished().outcome()),
                     "SUCCEEDED or SUSPENDED");
      }
      record.what = RankFinished{
          .suspended = event.finished().outcome() == v1::RankEvent::Finished::SUSPENDED,
          .step = event.finished().step(),
          .reason = Readable(event.finished().reason())};
      break;
    case v1::RankEvent::kExited:
      record.what = RankExited{.exit_code = event.exited().exit_code(),
                               .signal = event.exited().signal(),
                               .lost = event.exited().lost(),
                               .evidence = Readable(event.exited().evidence())};
      break;
    case v1::RankEvent::WHAT_NOT_SET:  // of a newer worker: its number must not be lost
      record.what = NoticeRecord{.warning = true,
                                 .message = "an event of a kind that this server does not know"};
      break;
  }
  return record;
}

// The secret itself is kept nowhere.
std::string UidOf(const std::string& node_secret) {
  return node_secret.empty() ? "" : Sha256Hex(node_secret).substr(0, 32);
}

}  // namespace

NodeReport DecodeReport(const v1::Heartbeat& heartbeat) {
  const auto sensible = [](double value, double most) {
    return value >= 0 && value <= most ? value : 0;  // nor is NaN
  };
  NodeReport report;
  std::vector<SlotUsage>& usage = report.usage;
  if (heartbeat.has_health()) {
    const v1::NodeHealth& health = heartbeat.health();
    const auto told = [](int64_t bytes) {
      return bytes > 0 ? std::optional<int64_t>(bytes) : std::nullopt;
    };
    report.disk_free_bytes = std::max<int64_t>(0, health.disk_free_bytes());
    report.disk_total_bytes = told(health.disk_total_bytes());
    report.state_dir = CleanText(health.state_dir(), kMostPathBytes);
    report.memory_total_bytes = told(health.memory_total_bytes());
    if (report.memory_total_bytes.has_value()) {
      report.memory_free_bytes = std::max<int64_t>(0, health.memory_free_bytes());
    }
    report.failed_starts = std::max<int64_t>(0, health.failed_starts());
    report.failed_writes = std::max<int64_t>(0, health.failed_writes());
  }
  for (const auto& [index, said] : heartbeat.usage()) {
    if (index < 0 || index >= kMostSlots) continue;
    usage.push_back({.index = index,
                     .utilization = sensible(said.utilization(), 1),
                     .memory_used_bytes = std::max<int64_t>(0, said.memory_used_bytes()),
                     .temperature_celsius = sensible(said.temperature_celsius(), kMostCelsius),
                     .power_watts = sensible(said.power_watts(), kMostWatts),
                     .last_xid = std::max(0, said.last_xid())});
  }
  std::sort(usage.begin(), usage.end(),
            [](const SlotUsage& a, const SlotUsage& b) { return a.index < b.index; });
  return report;
}

absl::StatusOr<int> AgreeOnProtocol(const v1::Register& message, ProtocolRange ours) {
  const int newest = message.protocol_version();
  const int oldest =
      message.oldest_protocol_version() == 0 ? newest : message.oldest_protocol_version();
  if (oldest < 1 || oldest > newest) {
    return Wrong("register.oldest_protocol_version",
                 absl::StrCat(oldest, " under a newest of ", newest),
                 "at least 1, at most register.protocol_version");
  }
  if (newest < ours.oldest || oldest > ours.newest) {
    return absl::FailedPreconditionError(
        absl::StrCat("register.protocol_version: the agent speaks ", oldest, " to ", newest,
                     ", this server ", ours.oldest, " to ", ours.newest, ": use a newer trainyard-",
                     newest < ours.oldest ? "agent" : "server"));
  }
  return std::min(newest, ours.newest);
}

absl::StatusOr<NodeRecord> DecodeRegister(const v1::Register& message) {
  TY_RETURN_IF_ERROR(AgreeOnProtocol(message).status());
  if (!IsNodeName(message.node())) {
    return Wrong("register.node", absl::StrCat("'", Readable(message.node()), "'"),
                 "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?");
  }
  if (!IsPrintable(message.incarnation(), 64)) {
    return Wrong("register.incarnation", absl::StrCat(message.incarnation().size(), " bytes"),
                 "1 to 64 printable characters");
  }
  if (!IsPrintable(message.address(), 253)) {
    return Wrong("register.address", absl::StrCat(message.address().size(), " bytes"),
                 "a host of 1 to 253 printable characters");
  }
  if (!message.node_secret().empty() && !IsPrintable(message.node_secret(), 128)) {
    return Wrong("register.node_secret", absl::StrCat(message.node_secret().size(), " bytes"),
                 "at most 128 printable characters");
  }
  if (!message.instance().empty() && !IsPrintable(message.instance(), 256)) {
    return Wrong("register.instance", absl::StrCat(message.instance().size(), " bytes"),
                 "at most 256 printable characters");
  }
  if (message.slots_size() > kMostSlots) {
    return Wrong("register.slots", absl::StrCat(message.slots_size()), "at most 1024");
  }
  if (message.labels_size() > kMostLabels) {
    return Wrong("register.labels", absl::StrCat(message.labels_size()), "at most 64");
  }
  NodeRecord node{.name = message.node(),
                  .uid = UidOf(message.node_secret()),
                  // Without a secret it proves nothing.
                  .instance = message.node_secret().empty() ? "" : message.instance(),
                  .incarnation = message.incarnation(),
                  .address = message.address(),
                  .agent_version = Readable(message.agent_version())};
  for (const auto& [key, value] : message.labels()) {
    if (!IsPrintable(key, 128) || (!value.empty() && !IsPrintable(value, 128))) {
      return Wrong("register.labels",
                   absl::StrCat("a label of ", key.size() + value.size(), " bytes"),
                   "printable keys and values of at most 128 bytes");
    }
    node.labels[key] = value;
  }
  if (message.found_size() > kMostFound) {
    return Wrong("register.found", absl::StrCat(message.found_size()), "at most 4096");
  }
  for (const v1::RankKey& key : message.found()) {
    TY_ASSIGN_OR_RETURN(node.found.emplace_back(), DecodeRankKey(key));
  }
  std::set<int> seen;
  for (int i = 0; i < message.slots_size(); ++i) {
    TY_ASSIGN_OR_RETURN(SlotRecord slot, DecodeSlot(message.slots(i), i));
    if (!seen.insert(slot.index).second) {
      return Wrong(absl::StrCat("register.slots[", i, "].index"), absl::StrCat(slot.index),
                   "an index that no other slot has");
    }
    node.slots.push_back(std::move(slot));
  }
  return node;
}

absl::StatusOr<std::vector<RunningRank>> DecodeRunning(const v1::Register& message) {
  if (message.running_size() > kMostFound) {
    return Wrong("register.running", absl::StrCat(message.running_size()), "at most 4096");
  }
  std::vector<RunningRank> running;
  for (const v1::RankKey& key : message.running()) {
    TY_ASSIGN_OR_RETURN(RankId id, DecodeRankKey(key));
    running.push_back({std::move(id), key.claim()});
  }
  return running;
}

absl::StatusOr<RankId> DecodeRankKey(const v1::RankKey& key) {
  if (!key.claim().empty() && !IsPrintable(key.claim(), 64)) {
    return Wrong("key.claim", absl::StrCat(key.claim().size(), " bytes"),
                 "at most 64 printable characters");
  }
  if (!IsPrintable(key.job_uid(), 64)) {
    return Wrong("key.job_uid", absl::StrCat(key.job_uid().size(), " bytes"),
                 "1 to 64 printable characters");
  }
  if (key.attempt() < 1) return Wrong("key.attempt", absl::StrCat(key.attempt()), "at least 1");
  if (key.rank() < 0) return Wrong("key.rank", absl::StrCat(key.rank()), "at least 0");
  return RankId{.job_uid = key.job_uid(), .attempt = key.attempt(), .rank = key.rank()};
}

std::vector<RankEventRecord> DecodeEvents(const v1::EventBatch& batch,
                                          const std::string& checkpoint_root) {
  const RankContext rank{checkpoint_root, batch.key().job_uid()};
  std::vector<RankEventRecord> records;
  records.reserve(batch.events_size());
  for (const v1::RankEvent& event : batch.events()) {
    absl::StatusOr<RankEventRecord> record = DecodeEvent(event, rank);
    const bool wrong = !record.ok();
    if (wrong) {
      record = RankEventRecord{
          .what = FailureRecord{
              .category = "INTERNAL",
              .message = absl::StrCat("the worker reported nonsense in event ", event.sequence(),
                                      ": ", record.status().message()),
              // Of a worker that was started when the server had another checkpoint root: its
              // next attempt writes where it should.
              .retryable = absl::IsFailedPrecondition(record.status())}};
    }
    record->sequence = event.sequence();
    record->time = DecodeTime(event.time_us());
    records.push_back(*std::move(record));
    if (wrong) break;
  }
  return records;
}

}  // namespace trainyard
