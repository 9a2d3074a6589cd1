#include "server/sizing/sizer_lane.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

absl::Status Stopped() { return absl::UnavailableError("server is draining"); }

}  // namespace

SizerLane::SizerLane(const FileDescriptor& program, Options options)
    : program_(program), options_(std::move(options)), free_(options_.helpers) {
  if (!options_.keep) return;
  absl::MutexLock lock(&mu_);
  for (int i = 0; i < options_.helpers; ++i) {
    absl::StatusOr<Process> process = Start();
    if (!process.ok()) {
      spdlog::warn("{}; tries again when a job is submitted", process.status().ToString());
      return;
    }
    idle_.push_back(*std::move(process));
  }
}

absl::StatusOr<SizerProcess*> SizerLane::Take(SteadyTime until) {
  const auto mine = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_ || free_ > 0; };
  {
    absl::MutexLock lock(&mu_);
    const absl::Duration left = absl::FromChrono(until - std::chrono::steady_clock::now());
    if (!mu_.AwaitWithTimeout(absl::Condition(&mine), std::max(left, absl::ZeroDuration()))) {
      return absl::UnavailableError(
          "the server is busy with the files and the plans of other submissions; try again");
    }
    if (stopped_) return Stopped();
    --free_;
    if (!idle_.empty()) {
      busy_.push_back(std::move(idle_.back()));
      idle_.pop_back();
      return busy_.back().get();
    }
  }
  absl::StatusOr<Process> process = Start();
  absl::MutexLock lock(&mu_);
  if (!process.ok() || stopped_) {
    ++free_;
    return process.ok() ? Stopped() : process.status();
  }
  busy_.push_back(*std::move(process));
  return busy_.back().get();
}

void SizerLane::GiveBack(SizerProcess* process, bool answered) {
  const bool keep = answered && options_.keep;
  Process own;
  {
    absl::MutexLock lock(&mu_);
    const auto found = std::find_if(busy_.begin(), busy_.end(),
                                    [&](const Process& p) { return p.get() == process; });
    own = std::move(*found);
    busy_.erase(found);
    if (keep && !stopped_) {
      idle_.push_back(std::move(own));
      ++free_;
      return;
    }
  }
  own.reset();  // waits for its end: its memory is free before another starts
  absl::StatusOr<Process> next = options_.keep ? Start() : absl::StatusOr<Process>(nullptr);
  absl::MutexLock lock(&mu_);
  ++free_;
  if (next.ok() && *next != nullptr && !stopped_) idle_.push_back(*std::move(next));
}

absl::StatusOr<SizerProcess::Outcome> SizerLane::Ask(const sizing::Question& question,
                                                     SteadyTime until) {
  TY_ASSIGN_OR_RETURN(SizerProcess* const process, Take(until));
  SizerProcess::Outcome outcome = process->Ask(question, until);
  GiveBack(process, outcome.end == SizerProcess::End::kAnswered);
  absl::MutexLock lock(&mu_);
  if (stopped_ && outcome.end == SizerProcess::End::kKilled) return Stopped();
  return outcome;
}

void SizerLane::Stop() {
  std::vector<Process> idle;
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  idle.swap(idle_);
  for (const Process& process : busy_) process->Kill();
}

std::vector<pid_t> SizerLane::Pids() const {
  absl::MutexLock lock(&mu_);
  std::vector<pid_t> pids;
  for (const auto* processes : {&idle_, &busy_}) {
    for (const Process& process : *processes) pids.push_back(process->pid());
  }
  return pids;
}

}  // namespace trainyard
