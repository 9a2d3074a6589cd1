#include "tests/simulation/sim_agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

RankId IdOf(const v1::RankKey& key) { return {key.job_uid(), key.attempt(), key.rank()}; }

v1::RankKey KeyOf(const RankId& id) {
  v1::RankKey key;
  key.set_job_uid(id.job_uid);
  key.set_attempt(id.attempt);
  key.set_rank(id.rank);
  return key;
}

}  // namespace

void SimAgent::Connect() {
  links_.erase(
      std::remove_if(links_.begin(), links_.end(), [](const auto& link) { return link->finished; }),
      links_.end());
  links_.push_back(std::make_unique<SimLink>());
  link_ = links_.back().get();
  link_->session = fleet_.Make(
      [] {
        return absl::StatusOr<Principal>(Principal{"agent:sim", "agent"});
      },
      *link_);
  v1::AgentMessage message;
  v1::Register& registration = *message.mutable_register_();
  registration.set_node(name_);
  registration.set_incarnation(absl::StrCat("i", incarnation_));
  registration.set_address(name_);
  registration.set_protocol_version(1);
  for (const v1::Slot& slot : slots_) *registration.add_slots() = slot;
  link_->to_server.push_back(message);
  registered_at_ = clock_.Now();
  heartbeats_.clear();
  desired_set_.Clear();
  desired_version_ = 0;
  fleet_.Begin(link_->session);
}

void SimAgent::Disconnect() {
  if (link_ == nullptr) return;
  if (!link_->finished) link_->session->Leave();
  link_ = nullptr;
}

void SimAgent::Deliver() {
  if (link_ == nullptr || link_->finished || !link_->wants || link_->to_server.empty()) return;
  link_->wants = false;
  v1::AgentMessage message = std::move(link_->to_server.front());
  link_->to_server.pop_front();
  link_->session->Receive(std::move(message));
}

void SimAgent::Act(int most) {
  if (link_ == nullptr) return;
  while (!link_->to_agent.empty() && most-- > 0) {
    const v1::ServerMessage message = std::move(link_->to_agent.front());
    link_->to_agent.pop_front();
    if (message.has_welcome()) acked_at_ = std::max(acked_at_, registered_at_);
    if (message.has_lease()) {
      acked_at_ = std::max(acked_at_, heartbeats_[message.lease().heartbeat_id()]);
      Obey();
    }
    if (message.has_desired()) {
      desired_set_ = message.desired();
      Obey();
    }
    if (message.has_ack()) Acknowledge(message.ack());
  }
  if (link_->finished && link_->to_agent.empty()) link_ = nullptr;
}

void SimAgent::Obey() {
  if (desired_set_.version() == 0) return;  // not told yet in this session: nothing is killed
  desired_version_ = desired_set_.version();
  desired_.clear();
  for (const v1::Assignment& assignment : desired_set_.assignments()) {
    const RankId id = IdOf(assignment.key());
    desired_.insert(id);
    const auto known = processes_.find(id);
    if (known != processes_.end()) {
      known->second.suspend = assignment.wish() == v1::Assignment::SUSPEND;
    } else if (done_.count(id) == 0 && !disk_full_ &&
               MayRun()) {  // a set that lay about may be older than the lease
      SimProcess process{.assignment = assignment};
      process.suspend = assignment.wish() == v1::Assignment::SUSPEND;
      processes_.emplace(id, std::move(process));
      ++moves_;
    }
  }
  for (auto& [id, process] : processes_) {
    if (desired_.count(id) == 0) process.dying = true;
  }
  for (auto it = done_.begin(); it != done_.end();) {
    it = desired_.count(*it) == 0 ? done_.erase(it) : std::next(it);
  }
}

void SimAgent::Acknowledge(const v1::EventAck& ack) {
  const RankId id = IdOf(ack.key());
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;
  SimProcess& process = found->second;
  if (ack.fenced()) {
    // Nothing of it is wanted any more; it is killed where the desired set says so.
    process.spool.clear();
    if (!process.alive) {
      done_.insert(id);
      processes_.erase(found);
      return;
    }
  }
  while (!process.spool.empty() && process.spool.front().sequence() <= ack.sequence()) {
    process.spool.pop_front();
  }
  if (process.exited_written && process.spool.empty()) {
    done_.insert(id);
    processes_.erase(found);
  }
}

void SimAgent::SendHeartbeat() {
  if (link_ == nullptr) return;
  v1::AgentMessage message;
  const int64_t id = next_heartbeat_++;
  heartbeats_[id] = clock_.Now();
  message.mutable_heartbeat()->set_id(id);
  message.mutable_heartbeat()->set_desired_version(desired_version_);
  message.mutable_heartbeat()->mutable_health()->set_disk_free_bytes(disk_full_ ? 1
                                                                                : int64_t{1} << 40);
  for (const auto& [rank, process] : processes_) {
    if (process.alive) *message.mutable_heartbeat()->add_present() = KeyOf(rank);
  }
  link_->to_server.push_back(std::move(message));
}

void SimAgent::SendEvents(int most) {
  if (link_ == nullptr) return;
  for (const auto& [rank, process] : processes_) {
    if (process.spool.empty()) continue;
    v1::AgentMessage message;
    *message.mutable_events()->mutable_key() = KeyOf(rank);
    for (int i = 0; i < most && i < static_cast<int>(process.spool.size()); ++i) {
      *message.mutable_events()->add_events() = process.spool[i];
    }
    link_->to_server.push_back(std::move(message));
  }
}

v1::RankEvent& SimAgent::Append(SimProcess& process) {
  v1::RankEvent& event = process.spool.emplace_back();
  event.set_sequence(process.next_sequence++);
  event.set_time_us(absl::ToUnixMicros(clock_.Now()));
  return event;
}

void SimAgent::WriteCheckpoint(const RankId& rank, SimProcess& process) {
  if (rank.rank != 0 || process.step == process.checkpoint_step) return;
  const std::string uri = absl::StrCat(process.assignment.checkpoint_root(), "/", process.step);
  disk_.checkpoints.insert(uri);
  v1::RankEvent::CheckpointWritten& written = *Append(process).mutable_checkpoint();
  written.set_step(process.step);
  written.set_uri(uri);
  written.set_bytes(1);
  written.set_manifest_sha256(std::string(64, 'a'));
  written.set_weights_sha256(std::string(64, 'b'));
  process.checkpoint_step = process.step;
}

void SimAgent::Step(const RankId& rank) {
  const auto found = processes_.find(rank);
  if (found == processes_.end() || !found->second.alive) return;
  SimProcess& process = found->second;
  if (process.dying) return Exit(process, 0, 9, false);
  const int64_t total = disk_.total_steps[rank.job_uid];
  if (process.phase == 0) {
    Append(process).mutable_started()->set_pid(1);
    process.phase = 1;
  } else if (process.phase == 1) {
    const v1::RestorePoint& restore = process.assignment.restore();
    if (!restore.uri().empty() && disk_.checkpoints.count(restore.uri()) == 0) {
      disk_.complaints.push_back(
          absl::StrCat("restores from ", restore.uri(), ", which is not there"));
    }
    process.step = restore.step();
    process.checkpoint_step = restore.uri().empty() ? -1 : restore.step();
    Append(process).mutable_restored()->set_step(process.step);
    process.phase = 2;
  } else if (process.step >= total || process.suspend) {
    WriteCheckpoint(rank, process);
    v1::RankEvent::Finished& finished = *Append(process).mutable_finished();
    finished.set_step(process.step);
    finished.set_outcome(process.step >= total ? v1::RankEvent::Finished::SUCCEEDED
                                               : v1::RankEvent::Finished::SUSPENDED);
    Exit(process, 0, 0, false);
  } else {
    ++process.step;
    if (rank.rank == 0) {
      v1::MetricPoint& point = *Append(process).mutable_metrics();
      point.set_step(process.step);
      point.set_split(v1::MetricPoint::TRAIN);
      (*point.mutable_values())["loss"] = 1.0 / static_cast<double>(process.step);
      if (process.step % 2 == 0) WriteCheckpoint(rank, process);
    }
  }
}

void SimAgent::Exit(SimProcess& process, int exit_code, int signal, bool lost) {
  if (!process.alive) return;
  process.alive = false;
  ++moves_;
  process.exited_written = true;
  v1::RankEvent::Exited& exited = *Append(process).mutable_exited();
  exited.set_exit_code(exit_code);
  exited.set_signal(signal);
  exited.set_lost(lost);
}

void SimAgent::Crash(const RankId& rank, bool with_failure, bool retryable) {
  const auto found = processes_.find(rank);
  if (found == processes_.end() || !found->second.alive) return;
  if (with_failure) {
    v1::Failure& failure = *Append(found->second).mutable_failure();
    failure.set_category(v1::Failure::DEVICE);
    failure.set_message("simulated");
    failure.set_retryable(retryable);
  }
  Exit(found->second, 1, with_failure ? 0 : 11, false);
}

void SimAgent::RestartAgent() {
  Disconnect();
  ++incarnation_;
}

void SimAgent::LosePower() {
  RestartAgent();
  for (auto& [id, process] : processes_) Exit(process, 0, 0, true);
}

void SimAgent::FenceIfDue() {
  if (MayRun()) return;
  for (auto& [id, process] : processes_) Exit(process, 0, 9, false);
}

}  // namespace trainyard
