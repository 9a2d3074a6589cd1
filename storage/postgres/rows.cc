#include "storage/postgres/rows.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "nlohmann/json.hpp"
#include "storage/base/status.h"
#include "storage/postgres/json_columns.h"
#include "storage/postgres/metric_rows.h"
#include "storage/records/change.h"

namespace trainyard::postgres {
namespace {

using Json = nlohmann::json;

absl::Time TimeOf(const pqxx::row& row, const char* column,
                  absl::Time null = absl::InfinitePast()) {
  const pqxx::field field = row[column];
  return field.is_null() ? null : absl::FromUnixMicros(field.as<int64_t>());
}

std::string TextOf(const pqxx::row& row, const char* column) {
  return row[column].as<std::string>();
}

std::vector<std::string> ArrayOf(const pqxx::row& row, const char* column) {
  std::vector<std::string> items;
  pqxx::array_parser parser = row[column].as_array();
  for (auto next = parser.get_next(); next.first != pqxx::array_parser::done;
       next = parser.get_next()) {
    if (next.first == pqxx::array_parser::string_value) items.push_back(next.second);
  }
  return items;
}

// A name that the constraint of the column does not allow is a defect.
template <typename T>
T NameOf(const std::optional<T>& parsed, const std::string& name) {
  TY_CHECK(parsed.has_value(), "'", name, "' in the database");
  return *parsed;
}

std::map<std::string, std::string> MapOf(const std::string& json) {
  return Json::parse(json).get<std::map<std::string, std::string>>();
}

std::map<std::string, double> ValuesOf(const Json& json) {
  return json.get<std::map<std::string, double>>();
}

// What HealthJson wrote.
void ReadHealth(const Json& json, NodeReport& report) {
  const auto bytes = [&json](const char* name) -> std::optional<int64_t> {
    if (!json.contains(name)) return std::nullopt;
    return json.at(name).get<int64_t>();
  };
  report.disk_total_bytes = bytes("disk_total");
  report.memory_free_bytes = bytes("memory_free");
  report.memory_total_bytes = bytes("memory_total");
  report.state_dir = json.value("state_dir", "");
  report.failed_starts = json.value("failed_starts", int64_t{0});
  report.failed_writes = json.value("failed_writes", int64_t{0});
}

bool HasColumn(const pqxx::row& row, const char* column) {
  for (const pqxx::field& field : row) {
    if (std::string(field.name()) == column) return true;
  }
  return false;
}

MetricRecord MetricOf(const pqxx::row& row) {
  MetricRecord metric{.step = row["step"].as<int64_t>(), .split = SplitOfRow(row)};
  const std::vector<std::string> names = ArrayOf(row, "names");
  const std::vector<std::string> values = ArrayOf(row, "values");
  for (size_t i = 0; i < names.size(); ++i) {
    metric.values[names[i]] = std::strtod(values[i].c_str(), nullptr);  // knows NaN and Infinity
  }
  return metric;
}

RankRecord RankOf(const pqxx::row& row) {
  RankRecord rank;
  rank.id = RankIdOf(row);
  rank.node = TextOf(row, "node");
  rank.claim = ClaimOf(row);
  for (const std::string& slot : ArrayOf(row, "slots"))
    rank.slots.push_back(std::atoi(slot.c_str()));
  const std::string state = TextOf(row, "state");
  rank.state = NameOf(ParseRankState(state), state);
  const std::string outcome = TextOf(row, "outcome");
  rank.outcome = NameOf(ParseRankOutcome(outcome), outcome);
  rank.acked_sequence = row["acked_sequence"].as<int64_t>();
  rank.failure = FailureIn(row["failure"]);
  rank.gone_time = TimeOf(row, "gone_time");
  return rank;
}

// The time at which the last rank was over; InfinitePast while one is not.
absl::Time EndOf(const AttemptRecord& attempt) {
  absl::Time end = absl::InfinitePast();
  for (const RankRecord& rank : attempt.ranks) {
    if (!IsOver(rank.state)) return absl::InfinitePast();
    end = std::max(end, rank.gone_time);
  }
  return end;
}

JobState StateOf(const std::string& name) { return NameOf(ParseJobState(name), name); }

// Kinds of rows of a feed beside those of single items.
constexpr char kPackedKind[] = "ITEMS";
constexpr char kSubmittedKind[] = "SUBMITTED";  // not stored: ReadFeeds makes it

// In one row. Whoever reads one of them reads them all.
constexpr size_t kMostPackedItems = 16;

// Kind and body of a feed item that is not a metric.
std::pair<std::string, Json> FeedBodyOf(const FeedRecord& item) {
  if (const auto* change = std::get_if<StateChangeRecord>(&item.what)) {
    Json body{{"to", std::string(JobStateName(change->to))},
              {"code", change->reason.code},
              {"message", change->reason.message}};
    if (change->from.has_value()) body["from"] = std::string(JobStateName(*change->from));
    return {"STATE", std::move(body)};
  }
  if (const auto* checkpoint = std::get_if<CheckpointRecord>(&item.what)) {
    return {"CHECKPOINT", Json{{"job_uid", checkpoint->job_uid},
                               {"step", checkpoint->step},
                               {"uri", checkpoint->uri},
                               {"bytes", checkpoint->bytes},
                               {"manifest_sha256", checkpoint->manifest_sha256},
                               {"weights_sha256", checkpoint->weights_sha256},
                               {"final", checkpoint->final},
                               {"metrics", checkpoint->metrics}}};
  }
  if (const auto* started = std::get_if<AttemptStartedRecord>(&item.what)) {
    return {"ATTEMPT", Json{{"step", started->step}, {"nodes", started->nodes}}};
  }
  const auto& notice = std::get<NoticeRecord>(item.what);
  return {"NOTICE",
          Json{{"rank", notice.rank}, {"warning", notice.warning}, {"message", notice.message}}};
}

// What FeedBodyOf wrote. The item has its time and attempt already.
void ReadFeedBody(const std::string& kind, const Json& body, FeedRecord& item) {
  if (kind == "STATE") {
    StateChangeRecord change{.to = StateOf(body.at("to")),
                             .reason = {body.at("code"), body.at("message")}};
    if (body.contains("from")) change.from = StateOf(body.at("from"));
    item.what = std::move(change);
  } else if (kind == "CHECKPOINT") {
    item.what = CheckpointRecord{.job_uid = body.at("job_uid"),
                                 .step = body.at("step"),
                                 .attempt = item.attempt,
                                 .uri = body.at("uri"),
                                 .bytes = body.at("bytes"),
                                 .manifest_sha256 = body.at("manifest_sha256"),
                                 .weights_sha256 = body.at("weights_sha256"),
                                 .final = body.at("final"),
                                 .create_time = item.time,
                                 .metrics = ValuesOf(body.value("metrics", Json::object()))};
  } else if (kind == "ATTEMPT") {
    item.what =
        AttemptStartedRecord{body.at("step"), body.at("nodes").get<std::vector<std::string>>()};
  } else {
    item.what = NoticeRecord{body.at("rank"), body.at("warning"), body.at("message")};
  }
}

}  // namespace

int StoredMaxSlots(const JobRecord& job) {
  return job.slot_step > 1 ? job.min_slots : job.max_slots;
}

int StoredMostSlots(const JobRecord& job) { return job.slot_step > 1 ? job.max_slots : 0; }

JobRecord JobOf(const pqxx::row& row) {
  JobRecord job;
  job.uid = TextOf(row, "uid");
  job.project = TextOf(row, "project");
  job.job_id = TextOf(row, "job_id");
  job.creator = TextOf(row, "creator");
  job.request_id = TextOf(row, "request_id");
  if (HasColumn(row, "spec")) {
    job.spec = BytesOf(row["spec"]);
    job.plan_summary = BytesOf(row["plan_summary"]);
    if (HasColumn(row, "slots") && !row["slots"].is_null()) job.slots = row["slots"].as<int>();
  }
  job.labels = MapOf(TextOf(row, "labels"));
  job.priority = row["priority"].as<int>();
  job.logical_ranks = row["logical_ranks"].as<int>();
  job.group_ranks = row["group_ranks"].as<int>();
  job.slot_step = row["slot_step"].as<int>();
  job.second_owner = row["second_owner"].as<bool>();
  job.layout = TextOf(row, "layout");
  job.min_slots = row["min_slots"].as<int>();
  job.max_slots = std::max(row["max_slots"].as<int>(), row["most_slots"].as<int>());
  job.resize = ResizeIn(row["resize"]);
  job.device = TextOf(row, "device");
  job.bytes_per_slot = row["bytes_per_slot"].as<int64_t>();
  job.total_steps = row["total_steps"].as<int64_t>();
  job.max_restarts = row["max_restarts"].as<int>();
  job.backoff = absl::Microseconds(row["backoff_us"].as<int64_t>());
  job.create_time = TimeOf(row, "create_time");
  job.state = StateOf(TextOf(row, "state"));
  job.reason = {TextOf(row, "reason_code"), TextOf(row, "reason_message")};
  const std::string cause = TextOf(row, "suspend_cause");
  job.suspend_cause = NameOf(ParseSuspendCause(cause), cause);
  job.version = row["version"].as<int64_t>();
  job.attempt = row["attempt"].as<int64_t>();
  job.restarts = row["restarts"].as<int>();
  job.step = row["step"].as<int64_t>();
  job.update_time = TimeOf(row, "update_time");
  job.not_before = TimeOf(row, "not_before");
  job.start_time = TimeOf(row, "start_time");
  job.end_time = TimeOf(row, "end_time");
  job.suspend_deadline = TimeOf(row, "suspend_deadline", absl::InfiniteFuture());
  job.failure = FailureIn(row["failure"]);
  job.newest_checkpoint_uri = TextOf(row, "newest_checkpoint_uri");
  job.losses = row["losses"].as<int>();
  job.avoid_node = TextOf(row, "avoid_node");
  // A rule that a newer server knows is none here.
  job.arithmetic_rule =
      ParseArithmeticRule(TextOf(row, "arithmetic_rule")).value_or(ArithmeticRule::kUnknown);
  job.arithmetic = TextOf(row, "arithmetic");
  return job;
}

std::vector<AttemptRecord> AttemptsOf(const pqxx::result& rows) {
  std::vector<AttemptRecord> attempts;
  for (const pqxx::row& row : rows) {
    const std::string job_uid = TextOf(row, "job_uid");
    const int64_t number = row["attempt"].as<int64_t>();
    if (attempts.empty() || attempts.back().job_uid != job_uid ||
        attempts.back().attempt != number) {
      AttemptRecord& attempt = attempts.emplace_back();
      attempt.job_uid = job_uid;
      attempt.attempt = number;
      attempt.world_size = row["world_size"].as<int>();
      attempt.layout = TextOf(row, "layout");
      attempt.restore_step = row["restore_step"].as<int64_t>();
      attempt.restore_uri = TextOf(row, "restore_uri");
      attempt.restore_manifest_sha256 = TextOf(row, "restore_manifest_sha256");
      attempt.create_time = TimeOf(row, "create_time");
      attempt.lost_before = row["lost_before"].as<bool>();
    }
    attempts.back().ranks.push_back(RankOf(row));
  }
  for (AttemptRecord& attempt : attempts) attempt.end_time = EndOf(attempt);
  return attempts;
}

NodeReport ReportOf(const pqxx::row& row) {
  NodeReport report;
  if (!row["disk_free_bytes"].is_null()) {
    report.disk_free_bytes = row["disk_free_bytes"].as<int64_t>();
  }
  const std::string health = TextOf(row, "health");
  if (health != "{}") ReadHealth(Json::parse(health), report);
  return report;
}

RankId RankIdOf(const pqxx::row& row) {
  return {TextOf(row, "job_uid"), row["attempt"].as<int64_t>(), row["rank"].as<int>()};
}

Claim ClaimOf(const pqxx::row& row) {
  return {TextOf(row, "node_uid"), TextOf(row, "node_instance"), TextOf(row, "claim")};
}

std::vector<NodeRecord> AllNodesOf(const pqxx::result& rows) {
  std::vector<NodeRecord> nodes;
  for (const pqxx::row& row : rows) nodes.push_back(NodeOf(row));
  return nodes;
}

NodeRecord NodeOf(const pqxx::row& row) {
  NodeRecord node;
  node.name = TextOf(row, "name");
  node.uid = TextOf(row, "uid");
  node.instance = TextOf(row, "instance");
  node.incarnation = TextOf(row, "incarnation");
  node.address = TextOf(row, "address");
  node.agent_version = TextOf(row, "agent_version");
  node.labels = MapOf(TextOf(row, "labels"));
  for (const Json& slot : Json::parse(row["slots"].c_str())) {
    node.slots.push_back({.index = slot.at("index"),
                          .device = slot.at("device"),
                          .model = slot.at("model"),
                          .memory_bytes = slot.at("memory_bytes"),
                          .cpu_threads = slot.at("cpu_threads"),
                          .arithmetic = slot.value("arithmetic", Arithmetic())});
  }
  node.report = ReportOf(row);
  for (const Json& slot : Json::parse(row["usage"].c_str())) {
    node.report.usage.push_back({.index = slot.at("index"),
                                 .utilization = slot.at("utilization"),
                                 .memory_used_bytes = slot.at("memory_used_bytes"),
                                 .temperature_celsius = slot.at("temperature_celsius"),
                                 .power_watts = slot.at("power_watts"),
                                 .last_xid = slot.at("last_xid")});
  }
  for (const Json& failure : Json::parse(row["failures"].c_str())) {
    node.failures.push_back({.job_uid = failure.at("job_uid"),
                             .job_id = failure.at("job_id"),
                             .attempt = failure.at("attempt"),
                             .category = failure.at("category"),
                             .time = absl::FromUnixMicros(failure.at("time")),
                             .charged = failure.at("charged")});
  }
  for (const Json& lost : Json::parse(row["lost_ranks"].c_str())) {
    node.lost_ranks.push_back({.id = {lost.at("job_uid"), lost.at("attempt"), lost.at("rank")},
                               .claim = {lost.at("uid"), lost.at("instance"), lost.at("claim")},
                               .slots = lost.at("slots").get<std::vector<int>>(),
                               .time = absl::FromUnixMicros(lost.at("time"))});
  }
  node.cordon = TextOf(row, "cordon");
  node.lifted_time = TimeOf(row, "lifted_time");
  node.boot_time = TimeOf(row, "boot_time");
  node.draining = row["draining"].as<bool>();
  if (!row["leave_time"].is_null()) {
    node.leave_time = absl::FromUnixMicros(row["leave_time"].as<int64_t>());
  }
  node.reachable = row["reachable"].as<bool>();
  node.beat = row["beat"].as<int64_t>();
  node.lease_end = TimeOf(row, "lease_end");
  node.create_time = TimeOf(row, "create_time");
  return node;
}

std::vector<FeedRecord> FeedItemsOf(const pqxx::row& row) {
  FeedRecord item;
  item.sequence = row["sequence"].as<int64_t>();
  item.time = TimeOf(row, "time");
  item.attempt = row["attempt"].as<int64_t>();
  const std::string kind = TextOf(row, "kind");
  if (kind == "METRIC") {
    item.what = MetricOf(row);
    return {item};
  }
  if (kind == kSubmittedKind) {
    item.what = StateChangeRecord{.to = JobState::kQueued, .reason = SubmittedReason()};
    return {item};
  }
  const Json body = Json::parse(row["body"].c_str());
  if (kind != kPackedKind) {
    ReadFeedBody(kind, body, item);
    return {item};
  }
  std::vector<FeedRecord> items;
  for (const Json& packed : body) {
    FeedRecord& one = items.emplace_back();
    one.sequence = packed.at("sequence");
    one.time = absl::FromUnixMicros(packed.at("time"));
    one.attempt = packed.at("attempt");
    ReadFeedBody(packed.at("kind"), packed.at("body"), one);
  }
  return items;
}

MetricRow MetricRowOf(const pqxx::row& row) {
  return {.sequence = row["sequence"].as<int64_t>(),
          .attempt = row["attempt"].as<int64_t>(),
          .time = TimeOf(row, "time"),
          .point = MetricOf(row),
          .superseded = row["superseded"].as<bool>()};
}

CheckpointRecord CheckpointOf(const pqxx::row& row) {
  return {.job_uid = TextOf(row, "job_uid"),
          .step = row["step"].as<int64_t>(),
          .attempt = row["attempt"].as<int64_t>(),
          .uri = TextOf(row, "uri"),
          .bytes = row["bytes"].as<int64_t>(),
          .manifest_sha256 = TextOf(row, "manifest_sha256"),
          .weights_sha256 = TextOf(row, "weights_sha256"),
          .final = row["final"].as<bool>(),
          .create_time = TimeOf(row, "create_time"),
          .metrics = ValuesOf(Json::parse(row["metrics"].c_str()))};
}

std::string MapJson(const std::map<std::string, std::string>& map) { return Json(map).dump(); }
std::string MapJson(const std::map<std::string, double>& map) { return Json(map).dump(); }

std::string SlotsJson(const std::vector<SlotRecord>& slots) {
  Json array = Json::array();
  for (const SlotRecord& slot : slots) {
    array.push_back({{"index", slot.index},
                     {"device", slot.device},
                     {"model", slot.model},
                     {"memory_bytes", slot.memory_bytes},
                     {"cpu_threads", slot.cpu_threads}});
    if (!slot.arithmetic.empty()) array.back()["arithmetic"] = slot.arithmetic;
  }
  return array.dump();
}

std::string UsageJson(const std::vector<SlotUsage>& usage) {
  Json array = Json::array();
  for (const SlotUsage& slot : usage) {
    array.push_back({{"index", slot.index},
                     {"utilization", slot.utilization},
                     {"memory_used_bytes", slot.memory_used_bytes},
                     {"temperature_celsius", slot.temperature_celsius},
                     {"power_watts", slot.power_watts},
                     {"last_xid", slot.last_xid}});
  }
  return array.dump();
}

std::string HealthJson(const NodeReport& report) {
  Json json{{"state_dir", report.state_dir},
            {"failed_starts", report.failed_starts},
            {"failed_writes", report.failed_writes}};
  const auto add = [&json](const char* name, const std::optional<int64_t>& bytes) {
    if (bytes.has_value()) json[name] = *bytes;
  };
  add("disk_total", report.disk_total_bytes);
  add("memory_free", report.memory_free_bytes);
  add("memory_total", report.memory_total_bytes);
  return json.dump();
}

FeedRow FeedRowOf(const FeedRecord& item) {
  auto [kind, body] = FeedBodyOf(item);
  return {item.sequence, item.time, item.attempt, std::move(kind), body.dump()};
}

std::vector<FeedRow> FeedRowsOf(const std::vector<FeedRecord>& items) {
  std::vector<FeedRow> rows;
  for (size_t begin = 0; begin < items.size(); begin += kMostPackedItems) {
    const size_t end = std::min(items.size(), begin + kMostPackedItems);
    FeedRow row = FeedRowOf(items[end - 1]);
    if (end - begin > 1) {
      Json packed = Json::array();
      for (size_t i = begin; i < end; ++i) {
        auto [kind, body] = FeedBodyOf(items[i]);
        packed.push_back({{"sequence", items[i].sequence},
                          {"time", absl::ToUnixMicros(items[i].time)},
                          {"attempt", items[i].attempt},
                          {"kind", std::move(kind)},
                          {"body", std::move(body)}});
      }
      row.kind = kPackedKind;
      row.body = packed.dump();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace trainyard::postgres
