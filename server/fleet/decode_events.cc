// DecodeEvents of decode.h: the events of a rank.

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/fleet/decode.h"
#include "server/fleet/decode_checks.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kMostValues = 64;  // metrics of one point
constexpr int kMostColumnPoints = 1 << 16;
constexpr int64_t kMostSteps = int64_t{1} << 53;
constexpr int64_t kMostCheckpointBytes = int64_t{1} << 60;

absl::Status CheckHexDigest(absl::string_view field, absl::string_view text) {
  const bool hex = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
  });
  if (hex && text.size() == 64) return absl::OkStatus();
  return FieldError(field, absl::StrCat(text.size(), " bytes"), "64 hex digits");
}

absl::Status CheckStep(absl::string_view field, int64_t step, int64_t least) {
  if (step >= least && step <= kMostSteps) return absl::OkStatus();
  return FieldError(field, step, absl::StrCat("a step in [", least, ", 2^53]"));
}

absl::Status CheckValueName(absl::string_view field, absl::string_view name) {
  if (IsPrintable(name, 64)) return absl::OkStatus();
  return FieldError(field, absl::StrCat("a name of ", name.size(), " bytes"),
                    "1 to 64 printable characters");
}

absl::StatusOr<std::map<std::string, double>> DecodeValues(
    const std::string& field, const google::protobuf::Map<std::string, double>& values) {
  if (values.size() > kMostValues) {
    return FieldError(field, absl::StrCat(values.size(), " values"), "at most 64");
  }
  std::map<std::string, double> decoded;
  for (const auto& [name, value] : values) {
    TY_RETURN_IF_ERROR(CheckValueName(field, name));
    decoded[name] = value;
  }
  return decoded;
}

absl::StatusOr<MetricSplit> DecodeSplit(absl::string_view field, v1::MetricPoint::Split split) {
  if (split == v1::MetricPoint::TRAIN) return MetricSplit::kTrain;
  if (split == v1::MetricPoint::VALIDATION) return MetricSplit::kValidation;
  return FieldError(field, split, "TRAIN or VALIDATION");
}

absl::StatusOr<MetricRecord> DecodeMetrics(const v1::MetricPoint& point) {
  TY_RETURN_IF_ERROR(CheckStep("metrics.step", point.step(), 1));
  MetricRecord record{.step = point.step()};
  TY_ASSIGN_OR_RETURN(record.split, DecodeSplit("metrics.split", point.split()));
  if (point.values().empty()) return FieldError("metrics.values", "0 values", "1 to 64");
  TY_ASSIGN_OR_RETURN(record.values, DecodeValues("metrics.values", point.values()));
  return record;
}

// A worker's clock may say anything; the database takes the years 1 to 9999 and some.
absl::Time DecodeTime(int64_t micros) {
  constexpr int64_t kYear9999 = int64_t{253402300799} * 1000000;
  return absl::FromUnixMicros(std::clamp<int64_t>(micros, 0, kYear9999));
}

absl::StatusOr<MetricRun> DecodeColumns(const v1::MetricColumns& columns) {
  const int points = columns.steps_size();
  if (points < 1 || points > kMostColumnPoints) {
    return FieldError("columns.steps", points, "1 to 65536");
  }
  if (columns.time_deltas_us_size() != points) {
    return FieldError("columns.time_deltas_us", columns.time_deltas_us_size(),
                      absl::StrCat(points, ", one per step"));
  }
  if (columns.columns_size() < 1 || columns.columns_size() > static_cast<int>(kMostValues)) {
    return FieldError("columns.columns", columns.columns_size(), "1 to 64");
  }
  MetricRun run;
  TY_ASSIGN_OR_RETURN(run.split, DecodeSplit("columns.split", columns.split()));
  uint64_t time_us = 0;
  for (int i = 0; i < points; ++i) {
    TY_RETURN_IF_ERROR(CheckStep("columns.steps", columns.steps(i), 1));
    time_us += static_cast<uint64_t>(columns.time_deltas_us(i));
    run.times.push_back(DecodeTime(static_cast<int64_t>(time_us)));
  }
  run.steps.assign(columns.steps().begin(), columns.steps().end());
  for (const v1::MetricColumns::Column& column : columns.columns()) {
    TY_RETURN_IF_ERROR(CheckValueName("columns.columns", column.name()));
    if (!run.names.empty() && column.name() <= run.names.back()) {
      return FieldError("columns.columns", column.name(), "names in order, each once");
    }
    if (column.values_size() != points) {
      return FieldError(absl::StrCat("columns.columns.", column.name()),
                        absl::StrCat(column.values_size(), " values"),
                        absl::StrCat(points, ", one per step"));
    }
    run.names.push_back(column.name());
    run.values.emplace_back(column.values().begin(), column.values().end());
  }
  return run;
}

// Where the files of a job's checkpoints may lie: what CheckpointRootOf (assignment.h) gives the
// job `uid` below `root`. With any other place the server, or whoever restores from it, would read
// and delete what does not belong to the job.
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

// What a batch's events are checked against.
struct RankContext {
  const std::string& checkpoint_root;
  const std::string& job_uid;
};

absl::StatusOr<CheckpointWritten> DecodeCheckpoint(const v1::RankEvent::CheckpointWritten& written,
                                                   const RankContext& rank) {
  TY_RETURN_IF_ERROR(CheckStep("checkpoint.step", written.step(), 0));
  TY_RETURN_IF_ERROR(CheckPrintable("checkpoint.uri", written.uri(), kLongestText));
  TY_RETURN_IF_ERROR(CheckLiesUnderJob(written.uri(), rank.checkpoint_root, rank.job_uid));
  if (written.bytes() < 0 || written.bytes() > kMostCheckpointBytes) {
    return FieldError("checkpoint.bytes", written.bytes(), "a size");
  }
  TY_RETURN_IF_ERROR(CheckHexDigest("checkpoint.manifest_sha256", written.manifest_sha256()));
  TY_RETURN_IF_ERROR(CheckHexDigest("checkpoint.weights_sha256", written.weights_sha256()));
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
      return FieldError(absl::StrCat("checkpoint.metrics.", name), value, "a finite number");
    }
  }
  TY_RETURN_IF_ERROR(CheckCount("checkpoint.removed_uris", written.removed_uris_size(), 1024));
  for (const std::string& uri : written.removed_uris()) {
    TY_RETURN_IF_ERROR(CheckPrintable("checkpoint.removed_uris", uri, kLongestText));
    record.removed_uris.push_back(uri);
  }
  return record;
}

absl::StatusOr<FailureRecord> DecodeFailure(const v1::Failure& failure) {
  if (failure.category() == v1::Failure::CATEGORY_UNSPECIFIED ||
      !v1::Failure::Category_IsValid(failure.category())) {
    return FieldError("failure.category", failure.category(), "a category");
  }
  return FailureRecord{.category = v1::Failure::Category_Name(failure.category()),
                       .message = Readable(failure.message()),
                       .retryable = failure.retryable(),
                       .rolled_back = failure.rolled_back(),
                       .has_state = failure.has_state(),
                       .told_after = failure.told_after()};
}

absl::StatusOr<RankRestored> DecodeRestored(const v1::RankEvent::Restored& restored) {
  TY_RETURN_IF_ERROR(CheckStep("restored.step", restored.step(), 0));
  RankRestored record{.step = restored.step()};
  const auto& values = restored.arithmetic();
  record.arithmetic = Arithmetic(values.begin(), values.end());
  if (!IsWellFormed(record.arithmetic)) {
    return FieldError("restored.arithmetic", absl::StrCat(values.size(), " values"),
                      "at most 32 of short, plain text");
  }
  return record;
}

absl::StatusOr<RankEventRecord> DecodeEvent(const v1::RankEvent& event, const RankContext& rank) {
  RankEventRecord record;
  switch (event.what_case()) {
    case v1::RankEvent::kStarted:
      record.what =
          RankStarted{.pid = event.started().pid(), .device = Readable(event.started().device())};
      break;
    case v1::RankEvent::kRestored: {
      TY_ASSIGN_OR_RETURN(record.what, DecodeRestored(event.restored()));
      break;
    }
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
        return FieldError("finished.outcome", event.finished().outcome(), "SUCCEEDED or SUSPENDED");
      }
      record.what = RankFinished{
          .suspended = event.finished().outcome() == v1::RankEvent::Finished::SUSPENDED,
          .step = event.finished().step(),
          .reason = Readable(event.finished().reason()),
          .kept = event.finished().kept()};
      break;
    case v1::RankEvent::kExited:
      record.what = RankExited{.exit_code = event.exited().exit_code(),
                               .signal = event.exited().signal(),
                               .lost = event.exited().lost(),
                               .evidence = Readable(event.exited().evidence())};
      if (event.exited().has_killed()) {
        std::get<RankExited>(record.what).killed = event.exited().killed();
      }
      break;
    case v1::RankEvent::WHAT_NOT_SET:  // of a newer worker: its sequence must not be lost
      record.what = NoticeRecord{.warning = true,
                                 .message = "an event of a kind that this server does not know"};
      break;
  }
  return record;
}

}  // namespace

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
              // kFailedPrecondition: the worker was started when the server had another checkpoint
              // root. Its job's next attempt writes where it should.
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
