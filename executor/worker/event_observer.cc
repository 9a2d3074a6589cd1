#include "executor/worker/event_observer.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "executor/worker/exit_code.h"
#include "storage/base/file.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::worker {

absl::Status EventObserver::OnStarted(const v1::JobSpec&, const plan::Plan& plan) {
  v1::RankEvent event;
  event.mutable_started()->set_pid(getpid());
  event.mutable_started()->set_device(device_);
  event.mutable_started()->set_total_steps(plan.total_steps);
  return events_.Append(std::move(event));
}

absl::Status EventObserver::OnRestored(int64_t step, const std::string& uri,
                                       const Arithmetic& arithmetic) {
  if (step > 0) spdlog::info("goes on from step {}, {}", step, uri.empty() ? "in memory" : uri);
  v1::RankEvent event;
  event.mutable_restored()->set_step(step);
  event.mutable_restored()->set_uri(uri);
  event.mutable_restored()->mutable_arithmetic()->insert(arithmetic.begin(), arithmetic.end());
  return events_.Append(std::move(event));
}

absl::Status EventObserver::OnMetrics(int64_t step, Split split,
                                      const std::map<std::string, double>& values) {
  v1::RankEvent event;
  v1::MetricPoint& point = *event.mutable_metrics();
  point.set_step(step);
  point.set_split(split == Split::kTrain ? v1::MetricPoint::TRAIN : v1::MetricPoint::VALIDATION);
  point.mutable_values()->insert(values.begin(), values.end());
  return events_.Append(std::move(event));
}

absl::Status EventObserver::Tell(v1::Notice::Severity severity, const std::string& message) {
  v1::RankEvent event;
  event.mutable_notice()->set_severity(severity);
  event.mutable_notice()->set_message(Printable(message));
  return events_.Append(std::move(event));
}

absl::Status EventObserver::OnNotice(const std::string& message) {
  spdlog::info("{}", message);
  return Tell(v1::Notice::INFO, message);
}

absl::Status EventObserver::OnWarning(const std::string& message) {
  spdlog::warn("{}", message);
  return Tell(v1::Notice::WARNING, message);
}

absl::Status EventObserver::OnFinished(const engine::RunResult& result) {
  if (result.kept) spdlog::info("leaves its state of step {} in memory", result.step);
  v1::RankEvent event;
  event.mutable_finished()->set_outcome(result.suspended ? v1::RankEvent::Finished::SUSPENDED
                                                         : v1::RankEvent::Finished::SUCCEEDED);
  event.mutable_finished()->set_step(result.step);
  event.mutable_finished()->set_reason(result.reason);
  event.mutable_finished()->set_kept(result.kept);
  return events_.Append(std::move(event));
}

absl::Status EventObserver::OnLeftAlone(const absl::Status& why, int64_t told_after) {
  spdlog::error("{}", std::string(why.message()));
  v1::RankEvent event;
  *event.mutable_failure() = FailureOf(why);
  event.mutable_failure()->set_has_state(true);
  event.mutable_failure()->set_told_after(told_after);
  TY_RETURN_IF_ERROR(events_.Append(std::move(event)));
  failure_told_ = true;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> EventObserver::OnCheckpoint(const engine::WrittenCheckpoint& written,
                                                    bool final,
                                                    const std::vector<std::string>& removed) {
  if (written.other_weights) {
    TY_RETURN_IF_ERROR(OnWarning(absl::StrCat(
        written.uri, " was there already, with other weights than this attempt has; it was kept")));
  }
  v1::RankEvent event;
  v1::RankEvent::CheckpointWritten& checkpoint = *event.mutable_checkpoint();
  checkpoint.set_step(written.step);
  checkpoint.set_uri(written.uri);
  checkpoint.set_bytes(written.bytes);
  checkpoint.set_manifest_sha256(written.manifest_sha256);
  checkpoint.set_weights_sha256(written.weights_sha256);
  checkpoint.set_final(final);
  checkpoint.mutable_metrics()->insert(written.metrics.begin(), written.metrics.end());
  for (const std::string& uri : removed) checkpoint.add_removed_uris(uri);
  TY_RETURN_IF_ERROR(events_.Append(std::move(event)));
  // Other threads may have appended events since: a later number only delays the removal.
  return events_.last_sequence();
}

int64_t EventObserver::SettledReport() {
  const absl::StatusOr<std::string> text = ReadFile(directory_.acked_path(), 100);
  if (!text.ok()) return 0;
  const std::vector<std::string> parts = absl::StrSplit(*text, ' ');
  int64_t sequence = 0;
  // "refused" says that the attempt was fenced: nothing is known to be stored. An older agent
  // writes "done" for that.
  if (parts.size() < 3 || absl::StartsWith(parts[2], "refused") ||
      absl::StartsWith(parts[2], "done") || !absl::SimpleAtoi(parts[0], &sequence)) {
    return 0;
  }
  return sequence;
}

void EventObserver::OnCheckpointWaits(int64_t step) {
  const absl::Status told = OnNotice(absl::StrCat(
      "the checkpoint of step ", step, " is written and waits: the server has not renewed this ",
      "node's lease, and another attempt may have begun; training goes on"));
  if (!told.ok()) spdlog::error("step {}: {}", step, std::string(told.message()));
}

void EventObserver::OnCheckpointFailed(int64_t step, const absl::Status& status) {
  const absl::Status warned = OnWarning(absl::StrCat(
      status.message(), "; training goes on, the next checkpoint is tried as planned"));
  if (!warned.ok()) spdlog::error("step {}: {}", step, std::string(warned.message()));
}

}  // namespace trainyard::worker
