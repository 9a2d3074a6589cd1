#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "executor/engine/run.h"
#include "executor/run/event_log.h"
#include "executor/run/run_directory.h"
#include "executor/worker/lease_watchdog.h"

namespace trainyard::worker {

// Turns what the engine tells into events of the rank. Thread-safe.
class EventObserver : public engine::RunObserver {
 public:
  EventObserver(run::EventWriter& events, const run::RunDirectory& directory,
                const LeaseWatchdog& lease, std::string device)
      : events_(events), directory_(directory), lease_(lease), device_(std::move(device)) {}

  absl::Status OnStarted(const v1::JobSpec& spec, const plan::Plan& plan) override;
  absl::Status OnRestored(int64_t step, const std::string& uri,
                          const Arithmetic& arithmetic) override;
  absl::Status OnMetrics(int64_t step, Split split,
                         const std::map<std::string, double>& values) override;
  absl::Status OnNotice(const std::string& message) override;
  absl::Status OnWarning(const std::string& message) override;
  absl::Status OnFinished(const engine::RunResult& result) override;
  absl::Status OnLeftAlone(const absl::Status& why, int64_t told_after) override;
  // Whether the failure of the run was reported: OnLeftAlone was called.
  bool failure_told() const { return failure_told_; }

  // The number of a report is the sequence of its event; it is settled once the server stored that.
  absl::StatusOr<int64_t> OnCheckpoint(const engine::WrittenCheckpoint& written, bool final,
                                       const std::vector<std::string>& removed) override;
  int64_t SettledReport() override;
  bool MayWrite() override { return lease_.HasRight(); }
  void OnCheckpointWaits(int64_t step) override;
  void OnCheckpointFailed(int64_t step, const absl::Status& status) override;

 private:
  absl::Status Tell(v1::Notice::Severity severity, const std::string& message);

  run::EventWriter& events_;
  const run::RunDirectory& directory_;
  const LeaseWatchdog& lease_;
  const std::string device_;
  bool failure_told_ = false;
};

}  // namespace trainyard::worker
