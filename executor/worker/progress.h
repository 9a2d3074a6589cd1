#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "executor/engine/run.h"
#include "executor/worker/metrics_file.h"
#include "storage/base/clock.h"

namespace trainyard::worker {

// "1:02:03", "4:05", "0:09".
std::string ClockText(absl::Duration d);

// Tells a person how the run is getting on: on a terminal one line that is rewritten, elsewhere a
// line now and then; and all numbers to a file, where there is one. Thread-safe.
class Progress : public engine::RunObserver {
 public:
  Progress(std::ostream& out, bool terminal, Clock& clock, std::string device,
           std::optional<MetricsFile> file)
      : out_(out),
        terminal_(terminal),
        clock_(clock),
        device_(std::move(device)),
        file_(std::move(file)) {}

  absl::Status OnStarted(const v1::JobSpec& spec, const plan::Plan& plan) override;
  absl::Status OnRestored(int64_t step, const std::string& uri,
                          const Arithmetic& arithmetic) override;
  absl::Status OnMetrics(int64_t step, Split split,
                         const std::map<std::string, double>& values) override;
  absl::Status OnNotice(const std::string& message) override;
  absl::Status OnWarning(const std::string& message) override;
  absl::Status OnFinished(const engine::RunResult& result) override;
  absl::StatusOr<int64_t> OnCheckpoint(const engine::WrittenCheckpoint& written, bool final,
                                       const std::vector<std::string>& removed) override;
  int64_t SettledReport() override;
  void OnCheckpointFailed(int64_t step, const absl::Status& status) override;

 private:
  std::string TrainLine(int64_t step, const std::map<std::string, double>& values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Line(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::ostream& out_;
  const bool terminal_;
  Clock& clock_;
  const std::string device_;
  std::optional<MetricsFile> file_;  // used by the run's thread alone

  absl::Mutex mu_;
  int64_t total_steps_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t first_step_ ABSL_GUARDED_BY(mu_) = 0;  // steps done before this process began
  absl::Duration begun_ ABSL_GUARDED_BY(mu_);
  absl::Duration shown_ ABSL_GUARDED_BY(mu_);
  bool rewriting_ ABSL_GUARDED_BY(mu_) = false;  // the terminal's line is not ended yet
};

}  // namespace trainyard::worker
