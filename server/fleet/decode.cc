#include "server/fleet/decode.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/fleet/assignment.h"
#include "server/fleet/decode_checks.h"
#include "storage/base/arithmetic.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

constexpr int kMostSlots = 1024;
constexpr int kMostFound = 4096;
constexpr double kMostCelsius = 1000, kMostWatts = 1e5;
constexpr size_t kMostPathBytes = 1024;
constexpr int kMostLabels = 64;
constexpr int64_t kMostBytes = int64_t{1} << 60;

bool IsNodeName(absl::string_view name) {
  const auto plain = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  if (name.empty() || name.size() > 63 || !plain(name.front()) || !plain(name.back())) return false;
  for (char c : name) {
    if (!plain(c) && c != '.' && c != '-') return false;
  }
  return true;
}

absl::Status CheckNodeName(const std::string& field, const std::string& name) {
  if (IsNodeName(name)) return absl::OkStatus();
  return FieldError(field, absl::StrCat("'", Readable(name), "'"),
                    "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?");
}

absl::StatusOr<SlotRecord> DecodeSlot(const v1::Slot& slot, int position) {
  const std::string field = absl::StrCat("register.slots[", position, "]");
  if (slot.index() < 0 || slot.index() >= kMostSlots) {
    return FieldError(field + ".index", slot.index(), "0 to 1023");
  }
  if (slot.memory_bytes() <= 0 || slot.memory_bytes() > kMostBytes) {
    return FieldError(field + ".memory_bytes", slot.memory_bytes(), "a positive size");
  }
  if (slot.device() != v1::Resources::CPU && slot.device() != v1::Resources::CUDA) {
    return FieldError(field + ".device", slot.device(), "CPU or CUDA");
  }
  if (slot.cpu_threads() < 0 || slot.cpu_threads() > 4096) {
    return FieldError(field + ".cpu_threads", slot.cpu_threads(), "0 to 4096");
  }
  const auto& values = slot.arithmetic().values();
  const Arithmetic arithmetic(values.begin(), values.end());
  if (!IsWellFormed(arithmetic)) {
    return FieldError(field + ".arithmetic", absl::StrCat(arithmetic.size(), " values"),
                      "at most 32 of short, plain text");
  }
  return SlotRecord{.index = slot.index(),
                    .device = v1::Resources::Device_Name(slot.device()),
                    .model = Readable(slot.model()),
                    .memory_bytes = slot.memory_bytes(),
                    .cpu_threads = slot.cpu_threads(),
                    .arithmetic = arithmetic};
}

// The secret itself is kept nowhere.
std::string UidOf(const std::string& node_secret) {
  return node_secret.empty() ? "" : Sha256Hex(node_secret).substr(0, 32);
}

}  // namespace

NodeReport DecodeReport(const v1::Heartbeat& heartbeat) {
  const auto sensible = [](double value, double most) {
    return value >= 0 && value <= most ? value : 0;  // false for NaN, too
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
    return FieldError("register.oldest_protocol_version",
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

absl::StatusOr<JoinerIdentity> DecodeJoin(const v1::JoinRequest& request) {
  TY_RETURN_IF_ERROR(CheckNodeName("node", request.node()));
  TY_RETURN_IF_ERROR(CheckPrintable("node_secret", request.node_secret(), 128));
  return JoinerIdentity{request.node(), UidOf(request.node_secret())};
}

absl::StatusOr<NodeRecord> DecodeRegister(const v1::Register& message) {
  TY_RETURN_IF_ERROR(AgreeOnProtocol(message).status());
  TY_RETURN_IF_ERROR(CheckNodeName("register.node", message.node()));
  TY_RETURN_IF_ERROR(CheckPrintable("register.incarnation", message.incarnation(), 64));
  if (!IsPrintable(message.address(), 253)) {
    return FieldError("register.address", absl::StrCat(message.address().size(), " bytes"),
                      "HOST:PORT of 1 to 253 printable characters");
  }
  TY_RETURN_IF_ERROR(CheckPrintableOrEmpty("register.node_secret", message.node_secret(), 128));
  TY_RETURN_IF_ERROR(CheckPrintableOrEmpty("register.instance", message.instance(), 256));
  TY_RETURN_IF_ERROR(CheckCount("register.slots", message.slots_size(), kMostSlots));
  TY_RETURN_IF_ERROR(CheckCount("register.labels", message.labels_size(), kMostLabels));
  NodeRecord node{.name = message.node(),
                  .uid = UidOf(message.node_secret()),
                  // Without a secret it proves nothing.
                  .instance = message.node_secret().empty() ? "" : message.instance(),
                  .incarnation = message.incarnation(),
                  .address = message.address(),
                  .agent_version = Readable(message.agent_version())};
  for (const auto& [key, value] : message.labels()) {
    if (!IsPrintable(key, 128) || (!value.empty() && !IsPrintable(value, 128))) {
      return FieldError("register.labels",
                        absl::StrCat("a label of ", key.size() + value.size(), " bytes"),
                        "printable keys and values of at most 128 bytes");
    }
    node.labels[key] = value;
  }
  TY_RETURN_IF_ERROR(CheckCount("register.found", message.found_size(), kMostFound));
  for (const v1::RankKey& key : message.found()) {
    TY_ASSIGN_OR_RETURN(node.found.emplace_back(), DecodeRankKey(key));
  }
  TY_RETURN_IF_ERROR(CheckCount("register.running", message.running_size(), kMostFound));
  for (const v1::RankKey& key : message.running()) {
    TY_ASSIGN_OR_RETURN(RankId id, DecodeRankKey(key));
    node.running.push_back({std::move(id), key.claim()});
  }
  std::set<int> seen;
  for (int i = 0; i < message.slots_size(); ++i) {
    TY_ASSIGN_OR_RETURN(SlotRecord slot, DecodeSlot(message.slots(i), i));
    if (!seen.insert(slot.index).second) {
      return FieldError(absl::StrCat("register.slots[", i, "].index"), slot.index,
                        "an index that no other slot has");
    }
    if (!RankAddress(message.address(), slot.index).ok()) {
      return FieldError("register.address", absl::StrCat("'", Readable(message.address()), "'"),
                        "HOST:PORT with a port for each slot, PORT + its index, of at most 65535");
    }
    node.slots.push_back(std::move(slot));
  }
  return node;
}

absl::StatusOr<RankId> DecodeRankKey(const v1::RankKey& key) {
  TY_RETURN_IF_ERROR(CheckPrintableOrEmpty("key.claim", key.claim(), 64));
  TY_RETURN_IF_ERROR(CheckPrintable("key.job_uid", key.job_uid(), 64));
  if (key.attempt() < 1) return FieldError("key.attempt", key.attempt(), "at least 1");
  if (key.rank() < 0) return FieldError("key.rank", key.rank(), "at least 0");
  return RankId{.job_uid = key.job_uid(), .attempt = key.attempt(), .rank = key.rank()};
}

}  // namespace trainyard
