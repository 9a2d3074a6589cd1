#include "tests/simulation/sim_agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "executor/agent/metric_columns.h"

namespace trainyard {
namespace {

// Longer than a lease and its margin: the node is lost.
constexpr absl::Duration kPowerLoss = absl::Seconds(15);

RankId IdOf(const v1::RankKey& key) { return {key.job_uid(), key.attempt(), key.rank()}; }

}  // namespace

// A server of the version before offers neither metric columns nor an orphan limit, for which
// workers step on without a lease.
void SimLink::Send(const v1::ServerMessage& message) {
  to_agent.push_back(message);
  if (server_ == SimVersion::kToday || !message.has_welcome()) return;
  v1::Welcome& welcome = *to_agent.back().mutable_welcome();
  welcome.clear_metric_columns();
  welcome.clear_orphan_limit_ms();
}

void SimAgent::Connect(Fleet& fleet, SimVersion server) {
  if (clock_.SinceBoot() < down_until_) return;
  if (!running_) {
    running_ = true;
    ++starts_;
    // It inherits the lease that the lease files of its workers hold.
    const absl::Duration fence_at = lease_.fence_at();
    lease_ = Lease();
    lease_.Inherit(alone_until_, fence_at);
  }
  links_.erase(
      std::remove_if(links_.begin(), links_.end(), [](const auto& link) { return link->finished; }),
      links_.end());
  links_.push_back(std::make_unique<SimLink>(&fleet, server));
  link_ = links_.back().get();
  link_->session =
      fleet.Make([] { return absl::StatusOr<std::optional<NodeKey>>(std::nullopt); }, *link_);
  v1::AgentMessage message;
  v1::Register& registration = *message.mutable_register_();
  registration.set_node(name_);
  registration.set_incarnation(absl::StrCat("i", number_, ".", starts_));
  registration.set_address(name_);
  registration.set_protocol_version(1);
  if (version_ == SimVersion::kToday) {
    registration.set_node_secret(absl::StrCat("secret ", number_, " of directory ", directories_));
    registration.set_instance(absl::StrCat("boot ", boots_, " of machine ", number_,
                                           ":0:", directories_, ":machine ", number_));
    for (const auto& [rank, process] : processes_) {
      *registration.add_found() = process.assignment.key();
      if (process.alive && !process.dying) {
        *registration.add_running() = process.assignment.key();
      }
    }
  }
  const Arithmetic& arithmetic = storage_.arithmetic[name_];
  for (const v1::Slot& slot : slots_) {
    v1::Slot& added = *registration.add_slots() = slot;
    if (arithmetic.empty()) continue;
    added.mutable_arithmetic()->mutable_values()->insert(arithmetic.begin(), arithmetic.end());
  }
  link_->to_server.push_back(message);
  registered_at_ = clock_.SinceBoot();
  desired_set_.Clear();
  desired_version_ = 0;
  fleet.Begin(link_->session);
}

void SimAgent::Disconnect() {
  if (link_ == nullptr) return;
  if (!link_->finished) link_->session->Leave();
  link_ = nullptr;
}

void SimAgent::CutFrom(const Fleet& fleet) {
  for (const auto& link : links_) {
    if (link->fleet() != &fleet) continue;
    link->session = nullptr;
    link->finished = true;
  }
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
    if (message.has_welcome()) TakeWelcome(message.welcome());
    if (message.has_lease()) {
      lease_.Acknowledge(message.lease().heartbeat_id());
      RenewRights();
      Obey();
    }
    if (message.has_desired()) {
      desired_set_ = message.desired();
      Obey();
      RenewRights();
    }
    if (message.has_ack()) Acknowledge(message.ack());
    for (const v1::LeftState& state : message.free().states()) {
      storage_.freed.emplace(state.job_uid(), state.attempt());
    }
  }
  if (!link_->finished || !link_->to_agent.empty()) return;
  // It was refused: its name, and with it its slots, may belong to another agent by now.
  if (!link_->welcomed && absl::IsFailedPrecondition(link_->status)) {
    ++refusals_;
    if (!HoldsLease()) FenceAll();
  }
  link_ = nullptr;
}

void SimAgent::TakeWelcome(v1::Welcome welcome) {
  link_->welcomed = true;
  if (version_ == SimVersion::kBefore) {
    welcome.clear_metric_columns();
    welcome.clear_orphan_limit_ms();
  }
  FenceIfDue();
  proven_ = version_ == SimVersion::kToday;
  takes_columns_ = welcome.metric_columns();
  lease_.Begin(welcome, registered_at_);
}

// Extends the rights of the processes that the desired set of this session names, while the lease
// holds.
void SimAgent::RenewRights() {
  if (!HoldsLease() || desired_version_ == 0) return;
  for (auto& [id, process] : processes_) {
    if (desired_.count(id) > 0) process.right_until = lease_.holds_until();
  }
}

// A desired set that was handled late may be older than the lease, and a slot may still have its
// old process.
bool SimAgent::MayStart(const v1::Assignment& assignment) {
  if (disk_full_ || stuck_ || !HoldsLease()) return false;
  for (const auto& [id, process] : processes_) {
    if (!process.alive) continue;
    for (const int slot : process.assignment.slots()) {
      if (std::count(assignment.slots().begin(), assignment.slots().end(), slot) > 0) return false;
    }
  }
  return true;
}

void SimAgent::Obey() {
  if (desired_set_.version() == 0) return;  // no set yet in this session: nothing is killed
  desired_version_ = desired_set_.version();
  desired_.clear();
  for (const v1::Assignment& assignment : desired_set_.assignments()) {
    const RankId id = IdOf(assignment.key());
    desired_.insert(id);
    const auto known = processes_.find(id);
    if (known != processes_.end()) {
      known->second.suspend = assignment.wish() == v1::Assignment::SUSPEND;
      known->second.keep = assignment.keep_state() != v1::Assignment::KEEP_STATE_UNSPECIFIED &&
                           version_ == SimVersion::kToday;
      known->second.alone = assignment.keep_state() == v1::Assignment::ALONE;
    } else if (done_.count(id) == 0 && MayStart(assignment)) {
      SimProcess process{.assignment = assignment};
      process.suspend = assignment.wish() == v1::Assignment::SUSPEND;
      process.right_until = lease_.holds_until();
      if (!storage_.begun.insert(id).second) {
        storage_.complaints.push_back(
            absl::StrCat(id.job_uid, " attempt ", id.attempt, " rank ", id.rank, " begins twice"));
      }
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
    // Nothing of it is wanted any more.
    process.spool.clear();
    process.dying = true;
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
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_id(lease_.Beat(clock_.SinceBoot()));
  heartbeat.set_desired_version(desired_version_);
  if (version_ == SimVersion::kToday) {
    heartbeat.mutable_health()->set_disk_free_bytes(disk_full_ ? 1 : int64_t{1} << 40);
  }
  for (const auto& [rank, process] : processes_) {
    if (process.alive) *heartbeat.add_present() = process.assignment.key();
  }
  for (const auto& [uid, kept] : storage_.kept) {
    if (kept.node != name_) continue;
    v1::LeftState& state = *heartbeat.add_left_states();
    state.set_job_uid(uid);
    state.set_attempt(kept.attempt);
  }
  link_->to_server.push_back(std::move(message));
}

void SimAgent::Leave(absl::Duration grace) {
  if (link_ == nullptr || version_ != SimVersion::kToday) return;
  v1::AgentMessage message;
  message.mutable_leaving()->set_grace_ms(absl::ToInt64Milliseconds(grace));
  link_->to_server.push_back(std::move(message));
}

void SimAgent::SendEvents(int most) {
  if (link_ == nullptr) return;
  for (const auto& [rank, process] : processes_) {
    if (process.spool.empty()) continue;
    v1::AgentMessage message;
    *message.mutable_events()->mutable_key() = process.assignment.key();
    for (int i = 0; i < most && i < static_cast<int>(process.spool.size()); ++i) {
      *message.mutable_events()->add_events() = process.spool[i];
    }
    if (takes_columns_) {
      *message.mutable_events() = PackMetrics(std::move(*message.mutable_events()));
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
  if (storage_.is_lost(rank)) {
    storage_.complaints.push_back(absl::StrCat(rank.job_uid, " attempt ", rank.attempt,
                                               " is lost and makes a checkpoint visible"));
  }
  storage_.checkpoints.insert(uri);
  v1::RankEvent::CheckpointWritten& written = *Append(process).mutable_checkpoint();
  written.set_step(process.step);
  written.set_uri(uri);
  written.set_bytes(1);
  written.set_manifest_sha256(std::string(64, 'a'));
  written.set_weights_sha256(std::string(64, 'b'));
  process.checkpoint_step = process.step;
}

void SimAgent::Finish(const RankId& rank, SimProcess& process, int64_t total) {
  const bool keeps = process.keep && process.step > 0 && process.step < total;
  if (keeps && process.alone) return LeaveAlone(rank, process);
  if (!keeps && !HasRight(process)) return;  // the checkpoint waits until it has
  if (!keeps) WriteCheckpoint(rank, process);
  v1::RankEvent::Finished& finished = *Append(process).mutable_finished();
  if (keeps && rank.rank == 0) {
    storage_.kept[rank.job_uid] = {.node = name_, .attempt = rank.attempt, .step = process.step};
    finished.set_kept(true);
  }
  finished.set_step(process.step);
  finished.set_outcome(process.step >= total ? v1::RankEvent::Finished::SUCCEEDED
                                             : v1::RankEvent::Finished::SUSPENDED);
  Exit(process, 0, 0, false);
}

void SimAgent::LeaveAlone(const RankId& rank, SimProcess& process) {
  v1::Failure& failure = *Append(process).mutable_failure();
  failure.set_category(v1::Failure::PEER);
  failure.set_retryable(true);
  failure.set_has_state(true);
  const int64_t begin = storage_.begins[{rank.job_uid, rank.attempt}];
  for (int64_t step = begin + 1; step <= process.step && rank.rank != 0; ++step) {
    AppendLoss(process, step);
  }
  v1::RankEvent::Finished& finished = *Append(process).mutable_finished();
  finished.set_outcome(v1::RankEvent::Finished::SUSPENDED);
  finished.set_step(process.step);
  finished.set_kept(true);
  SimStorage::Kept& kept = storage_.kept[rank.job_uid];
  if (kept.attempt < rank.attempt || kept.step < process.step) {
    kept = {.node = name_, .attempt = rank.attempt, .step = process.step};
  }
  ++storage_.left_alone;
  Exit(process, 77, 0, false);
}

void SimAgent::AppendLoss(SimProcess& process, int64_t step) {
  v1::MetricPoint& point = *Append(process).mutable_metrics();
  point.set_step(step);
  point.set_split(v1::MetricPoint::TRAIN);
  (*point.mutable_values())["loss"] = 1.0 / static_cast<double>(step);
}

int64_t SimAgent::BeginOf(const RankId& rank, const SimProcess& process) {
  const auto [begin, first] = storage_.begins.try_emplace({rank.job_uid, rank.attempt}, 0);
  if (!first) return begin->second;
  const std::string& uri = process.assignment.restore().uri();
  if (!absl::SimpleAtoi(uri.substr(uri.rfind('/') + 1), &begin->second)) begin->second = 0;
  const v1::KeptState& wanted = process.assignment.kept();
  if (storage_.freed.count({rank.job_uid, wanted.attempt()}) > 0) {
    storage_.complaints.push_back(absl::StrCat(rank.job_uid, " needs what attempt ",
                                               wanted.attempt(), " left, which was freed"));
  }
  const auto kept = storage_.kept.find(rank.job_uid);
  const bool here = kept != storage_.kept.end() &&
                    kept->second.attempt == process.assignment.kept().attempt() &&
                    kept->second.step == process.assignment.kept().step();
  if (here && version_ == SimVersion::kToday) begin->second = kept->second.step;
  return begin->second;
}

void SimAgent::LoseMemory() {
  std::erase_if(storage_.kept, [this](const auto& kept) { return kept.second.node == name_; });
}

void SimAgent::Step(const RankId& rank) {
  const auto found = processes_.find(rank);
  if (found == processes_.end() || !found->second.alive) return;
  SimProcess& process = found->second;
  if (process.dying) return Exit(process, 0, 9, false);
  if (disk_full_) {  // it cannot write down what it did
    if (process.phase == 2) Exit(process, 74, 0, false);
    return;
  }
  const int64_t total = storage_.total_steps[rank.job_uid];
  if (process.phase == 0) {
    Append(process).mutable_started()->set_pid(1);
    process.phase = 1;
  } else if (process.phase == 1) {
    const v1::RestorePoint& restore = process.assignment.restore();
    if (!restore.uri().empty() && storage_.checkpoints.count(restore.uri()) == 0) {
      storage_.complaints.push_back(
          absl::StrCat("restores from ", restore.uri(), ", which is not there"));
    }
    process.step = BeginOf(rank, process);
    if (storage_.checkpoints.count(
            absl::StrCat(process.assignment.checkpoint_root(), "/", process.step)) > 0) {
      process.checkpoint_step = process.step;
    }
    v1::RankEvent::Restored& restored = *Append(process).mutable_restored();
    restored.set_step(process.step);
    const Arithmetic& arithmetic = storage_.arithmetic[name_];
    restored.mutable_arithmetic()->insert(arithmetic.begin(), arithmetic.end());
    process.phase = 2;
  } else if (process.step >= total || process.suspend) {
    Finish(rank, process, total);
  } else if (storage_.poisoned.count(rank.job_uid) > 0) {
    GoDown(kPowerLoss);
  } else {
    ++process.step;
    if (rank.rank == 0) {
      AppendLoss(process, process.step);
      if (process.step % 2 == 0 && HasRight(process)) WriteCheckpoint(rank, process);
    }
  }
}

void SimAgent::Exit(SimProcess& process, int exit_code, int signal, bool lost) {
  if (!process.alive) return;
  process.alive = false;
  ++moves_;
  process.owed.emplace();
  process.owed->set_exit_code(exit_code);
  process.owed->set_signal(signal);
  process.owed->set_lost(lost);
  RecordEnd(process);
}

void SimAgent::RecordEnd(SimProcess& process) {
  if (!process.owed.has_value() || disk_full_) return;
  *Append(process).mutable_exited() = *process.owed;
  process.owed.reset();
  process.exited_written = true;
}

void SimAgent::SetDiskFull(bool full) {
  disk_full_ = full;
  for (auto& [id, process] : processes_) RecordEnd(process);
}

void SimAgent::Crash(const RankId& rank, bool with_failure, bool retryable) {
  const auto found = processes_.find(rank);
  if (found == processes_.end() || !found->second.alive) return;
  if (with_failure && !disk_full_) {
    v1::Failure& failure = *Append(found->second).mutable_failure();
    failure.set_category(v1::Failure::DEVICE);
    failure.set_message("simulated");
    failure.set_retryable(retryable);
  }
  Exit(found->second, 1, with_failure ? 0 : 11, false);
}

void SimAgent::Stop() {
  Disconnect();
  if (!running_) return;
  running_ = false;
  LoseMemory();
  alone_until_ = lease_.LifeFrom(clock_.SinceBoot());
}

void SimAgent::LosePower() {
  Stop();
  ++boots_;
  LoseMemory();
  for (auto& [id, process] : processes_) Exit(process, 0, 0, true);
  ghosts_.clear();
}

void SimAgent::GoDown(absl::Duration time) {
  down_until_ = clock_.SinceBoot() + time;
  LosePower();
}

void SimAgent::Wipe(absl::Duration stopped) {
  Stop();
  ++directories_;
  ++moves_;
  lease_ = Lease();
  for (auto& [id, process] : processes_) {
    if (process.alive) ghosts_.emplace(id, std::move(process));
  }
  ghosts_until_ = clock_.SinceBoot() + stopped;
  processes_.clear();
  done_.clear();
}

// An agent that lives kills its workers when nobody spoke to it for too long; a worker whose agent
// is gone ends by itself.
void SimAgent::FenceIfDue() {
  const absl::Duration now = clock_.SinceBoot();
  if (!ghosts_.empty() && now >= ghosts_until_) {
    ghosts_.clear();
    ++moves_;
  }
  if (now >= (running_ ? lease_.fence_at() : alone_until_)) FenceAll();
}

void SimAgent::FenceAll() {
  for (auto& [id, process] : processes_) Exit(process, 75, 0, false);
}

}  // namespace trainyard
