// How an agent ends, and what becomes of what runs there.

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

#include "executor/agent/agent.h"

namespace trainyard {
namespace {

// For what was killed to be reported.
constexpr absl::Duration kLastWords = absl::Seconds(2);

}  // namespace

void Agent::ReadSignal(int signal_fd) {
  signalfd_siginfo info{};
  if (read(signal_fd, &info, sizeof(info)) != sizeof(info)) return;
  const bool kill = info.ssi_signo == SIGINT || options_.kill_workers_on_exit ||
                    leaving_ == Leaving::kGiveWorkAway || leaving_ == Leaving::kKillWorkers;
  if (!kill && options_.leave_grace > absl::ZeroDuration()) return GiveWorkAway();
  spdlog::info("leaving; workers {}", kill ? "are killed" : "go on");
  if (kill && leaving_ != Leaving::kKillWorkers) KillEverything();
  leaving_ = kill ? Leaving::kKillWorkers : Leaving::kLeaveWorkers;
}

void Agent::GiveWorkAway() {
  const absl::Duration now = clock_.SinceBoot();
  spdlog::info("leaving; what runs here gets {} to end or to go on elsewhere",
               absl::FormatDuration(options_.leave_grace));
  leaving_ = Leaving::kGiveWorkAway;
  // What is killed at the end has a moment for its last words.
  leave_deadline_ = now + std::max(options_.leave_grace - kLastWords, absl::ZeroDuration());
  warm_->KillAll();
  TellLeave(now);
}

// In each session: to register means to stay.
void Agent::TellLeave(absl::Duration now) {
  leave_known_ = false;
  leave_beat_ = 0;
  if (!up_) return;
  v1::AgentMessage message;
  message.mutable_leaving()->set_grace_ms(
      absl::ToInt64Milliseconds(std::max(leave_deadline_ - now, absl::ZeroDuration())));
  link_->Send(std::move(message));
  SendHeartbeat(now);
  leave_beat_ = lease_.last_beat();
}

void Agent::KillEverything() {
  for (auto& [name, rank] : ranks_) rank->Fence();
  warm_->KillAll();
  leave_deadline_ = clock_.SinceBoot() + kLastWords;
}

bool Agent::ReadyToLeave(absl::Duration now) {
  if (leaving_ == Leaving::kLeaveWorkers) return true;
  bool lives = false, delivered = true;
  for (const auto& [name, rank] : ranks_) {
    lives = lives || rank->HasProcess();
    delivered = delivered && (rank->retired() || rank->spool().done());
  }
  if (leaving_ == Leaving::kGiveWorkAway) {
    const bool settled = !up_ || (leave_known_ && desired_.assignments().empty());
    if (!lives && delivered && settled) return true;
    if (now < leave_deadline_) return false;
    if (lives) spdlog::warn("what still runs here is killed: the grace to leave is over");
    leaving_ = Leaving::kKillWorkers;
    KillEverything();
    return false;
  }
  return !lives && (delivered || !up_ || now >= leave_deadline_);
}

}  // namespace trainyard
