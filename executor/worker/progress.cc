#include "executor/worker/progress.h"

#include <limits>

#include "absl/strings/str_format.h"
#include "storage/base/status.h"

namespace trainyard::worker {
namespace {

constexpr absl::Duration kTerminalEvery = absl::Milliseconds(100);
constexpr absl::Duration kPlainEvery = absl::Seconds(2);

std::string Bytes(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

// 0.0721, 9.57, 12345: large numbers are printed without an exponent.
std::string RateText(double per_second) {
  return per_second < 1000 ? absl::StrFormat("%.3g", per_second)
                           : absl::StrFormat("%.0f", per_second);
}

}  // namespace

std::string ClockText(absl::Duration d) {
  const int64_t s = absl::ToInt64Seconds(d + absl::Milliseconds(500));
  if (s >= 3600) return absl::StrFormat("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
  return absl::StrFormat("%d:%02d", s / 60, s % 60);
}

void Progress::Line(const std::string& line) {
  if (rewriting_) out_ << "\r\033[K";
  rewriting_ = false;
  out_ << line << std::endl;
}

absl::Status Progress::OnStarted(const v1::JobSpec&, const plan::Plan& plan) {
  absl::MutexLock lock(&mu_);
  total_steps_ = plan.total_steps;
  Line(absl::StrFormat("%d parameters, %d steps, %s of memory, on %s", plan.summary.parameters(),
                       plan.total_steps, Bytes(plan.summary.bytes_per_slot()), device_));
  return absl::OkStatus();
}

absl::Status Progress::OnRestored(int64_t step, const std::string& uri, const Arithmetic&) {
  absl::MutexLock lock(&mu_);
  first_step_ = step;
  begun_ = clock_.SinceBoot();
  shown_ = begun_ - absl::Hours(1);
  if (!uri.empty()) Line(absl::StrFormat("going on from step %d, %s", step, uri));
  return absl::OkStatus();
}

std::string Progress::TrainLine(int64_t step, const std::map<std::string, double>& values) {
  const absl::Duration gone = clock_.SinceBoot() - begun_;
  const double rate = static_cast<double>(step - first_step_) / absl::ToDoubleSeconds(gone);
  const absl::Duration left = absl::Seconds(static_cast<double>(total_steps_ - step) / rate);
  std::string line =
      absl::StrFormat("step %d/%d  loss %.4f  lr %.3g  %s steps/s", step, total_steps_,
                      values.at("loss"), values.at("learning_rate"), RateText(rate));
  const auto tokens = values.find("tokens_per_second");
  if (tokens != values.end()) {
    absl::StrAppend(&line, "  ", RateText(tokens->second), " tokens/s");
  } else {
    absl::StrAppend(&line, "  ", RateText(values.at("samples_per_second")), " samples/s");
  }
  absl::StrAppendFormat(&line, "  %s left", ClockText(left));
  return line;
}

absl::Status Progress::OnMetrics(int64_t step, Split split,
                                 const std::map<std::string, double>& values) {
  if (file_.has_value()) TY_RETURN_IF_ERROR(file_->Add(step, split, values));
  absl::MutexLock lock(&mu_);
  if (split == Split::kValidation) {
    std::string line = absl::StrFormat("step %d/%d  validation", step, total_steps_);
    for (const char* name :
         {"loss", "accuracy", "auc", "best_auc", "perplexity", "bits_per_byte", "ema_decay"}) {
      const auto value = values.find(name);
      if (value != values.end()) absl::StrAppendFormat(&line, "  %s %.4f", name, value->second);
    }
    Line(line);
    return absl::OkStatus();
  }
  const absl::Duration now = clock_.SinceBoot();
  const bool due = now - shown_ >= (terminal_ ? kTerminalEvery : kPlainEvery);
  if (!due && step != total_steps_) return absl::OkStatus();
  shown_ = now;
  if (terminal_) {
    out_ << "\r\033[K" << TrainLine(step, values) << std::flush;
    rewriting_ = true;
    if (step == total_steps_) {
      out_ << std::endl;
      rewriting_ = false;
    }
  } else {
    Line(TrainLine(step, values));
  }
  return absl::OkStatus();
}

absl::Status Progress::OnNotice(const std::string& message) {
  absl::MutexLock lock(&mu_);
  Line(message);
  return absl::OkStatus();
}

absl::Status Progress::OnWarning(const std::string& message) {
  absl::MutexLock lock(&mu_);
  Line(absl::StrCat("warning: ", message));
  return absl::OkStatus();
}

absl::Status Progress::OnFinished(const engine::RunResult& result) {
  absl::MutexLock lock(&mu_);
  const std::string time = ClockText(clock_.SinceBoot() - begun_);
  Line(result.suspended ? absl::StrFormat("stopped after step %d of %d; --resume goes on",
                                          result.step, total_steps_)
                        : absl::StrFormat("finished %d steps in %s", result.step, time));
  if (!result.reason.empty()) Line(result.reason);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Progress::OnCheckpoint(const engine::WrittenCheckpoint& written, bool final,
                                               const std::vector<std::string>&) {
  absl::MutexLock lock(&mu_);
  if (written.other_weights) {
    Line(absl::StrCat("warning: ", written.uri,
                      " was there already with other weights; it was kept"));
  }
  Line(absl::StrFormat("%s %s (%s)", final ? "final checkpoint" : "checkpoint", written.uri,
                       Bytes(written.bytes)));
  return 0;
}

// Nobody else restores a run without a server, so every report counts as settled.
int64_t Progress::SettledReport() { return std::numeric_limits<int64_t>::max(); }

void Progress::OnCheckpointFailed(int64_t, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  Line(absl::StrCat("warning: ", status.message(), "; training goes on"));
}

}  // namespace trainyard::worker
