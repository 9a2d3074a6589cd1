#include "executor/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/agent/identity.h"
#include "executor/agent/metric_columns.h"
#include "executor/agent/slots.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// The tick finds events that inotify did not report, and paces slow chores.
constexpr absl::Duration kTick = absl::Milliseconds(200);
constexpr absl::Duration kCleaning = absl::Minutes(1);
// Between looks at a killed process that is not gone yet.
constexpr absl::Duration kReapPause = absl::Milliseconds(5);
constexpr absl::Duration kResendAfter = absl::Seconds(15);
constexpr absl::Duration kSilence = absl::Seconds(5);
constexpr int64_t kMostLogBytes = int64_t{1} << 20;  // of an answer
constexpr int64_t kLogFileBytes = int64_t{4} << 20;  // two files per rank
constexpr absl::Duration kBetweenLeftStates = absl::Seconds(5);
constexpr int kMostFound = 4096;  // ranks that a Register message names

// `desired` without the assignments whose key cannot name a folder: a defect of the server must not
// make the agent write outside its own folder.
v1::DesiredSet WithValidNames(const v1::DesiredSet& desired) {
  v1::DesiredSet valid;
  valid.set_version(desired.version());
  for (const v1::Assignment& assignment : desired.assignments()) {
    const std::string name = run::RunDirectory::NameOf(assignment.key());
    const absl::Status status = run::RunDirectory::ParseName(name).status();
    if (status.ok()) {
      *valid.add_assignments() = assignment;
    } else {
      spdlog::error("assignment ignored: {}", status.ToString());
    }
  }
  return valid;
}

}  // namespace

Agent::Inbox::Inbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TY_CHECK(fd_.valid(), "eventfd: errno ", errno);
}

void Agent::Inbox::Put(LinkEvent event) {
  absl::MutexLock lock(&mu_);
  events_.push_back(std::move(event));
  eventfd_write(fd_.get(), 1);
}

std::deque<LinkEvent> Agent::Inbox::TakeAll() {
  absl::MutexLock lock(&mu_);
  eventfd_t count = 0;
  eventfd_read(fd_.get(), &count);
  return std::exchange(events_, {});
}

Agent::Agent(AgentOptions options, Clock& clock)
    : options_(std::move(options)),
      ranks_folder_(options_.state_dir + "/ranks"),
      looks_folder_(options_.state_dir + "/looks"),
      clock_(clock) {}

Agent::~Agent() = default;

absl::Status Agent::SetUp() {
  TY_RETURN_IF_ERROR(MakeDirectories(ranks_folder_, 0700));
  const std::string lock_path = options_.state_dir + "/lock";
  lock_.Reset(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock_.valid()) return ErrnoStatus(errno, lock_path);
  // The lock belongs to the process (fcntl), not to the descriptor (flock): a worker that a killed
  // agent was just starting holds the descriptor until its exec.
  struct flock whole {
    .l_type = F_WRLCK, .l_whence = SEEK_SET
  };
  if (fcntl(lock_.get(), F_SETLK, &whole) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("another agent uses the state directory ", options_.state_dir));
  }
  // What an agent that was killed left of its looks is of no use to anybody.
  std::error_code error;
  std::filesystem::remove_all(looks_folder_, error);
  TY_RETURN_IF_ERROR(MakeDirectories(looks_folder_, 0700));
  if (const std::string& program = options_.worker.path; access(program.c_str(), X_OK) != 0) {
    return ErrnoStatus(errno, program);
  }
  TY_ASSIGN_OR_RETURN(const Identity identity, OpenIdentity(options_.state_dir));
  hello_ = options_.hello;
  hello_.set_node_secret(identity.secret);
  hello_.set_instance(identity.instance);
  hello_.set_knows_unix_users(true);
  // As other users than its own, which the server may be as well.
  hello_.set_looks_at_files(geteuid() == 0 && options_.worker.confined);
  inotify_.Reset(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!inotify_.valid()) return ErrnoStatus(errno, "inotify");
  // What a dead worker leaves behind becomes our child, so that it can be killed and reaped.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal(SIGPIPE, SIG_IGN);
  umask(077);
  TY_RETURN_IF_ERROR(AdoptRanks());
  for (const auto& [name, rank] : ranks_) {
    if (hello_.found_size() < kMostFound && !rank->retired()) *hello_.add_found() = rank->key();
  }
  return absl::OkStatus();
}

absl::Status Agent::AdoptRanks() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(ranks_folder_, error)) {
    absl::StatusOr<std::unique_ptr<LocalRank>> rank = LocalRank::Adopt(entry.path(), clock_);
    if (!rank.ok()) {
      spdlog::warn("ignoring {}: {}", entry.path().string(), rank.status().ToString());
      continue;
    }
    if ((*rank)->HasProcess()) {
      spdlog::info("adopted {} (pid {})", (*rank)->name(), (*rank)->pid());
      lease_.Inherit((*rank)->lease_until(), (*rank)->fence_at());
      WatchEvents(**rank);
    }
    ranks_[(*rank)->name()] = *std::move(rank);
  }
  if (error) return absl::InternalError(absl::StrCat(ranks_folder_, ": ", error.message()));
  return absl::OkStatus();
}

void Agent::WatchEvents(const LocalRank& rank) {
  // If the watch cannot be added (there is a limit), the tick finds the events.
  inotify_add_watch(inotify_.get(), run::RunDirectory(rank.path()).events_path().c_str(),
                    IN_MODIFY);
}

absl::Status Agent::Run(int signal_fd) {
  TY_RETURN_IF_ERROR(SetUp());
  warm_ = std::make_unique<WarmWorkers>(options_.worker, options_.state_dir + "/standby",
                                        WhatWorkersWaitFor());
  gpus_ = std::make_unique<GpuMonitor>(options_.nvml, clock_);
  Link::Options link{.servers = options_.servers,
                     .token_file = options_.token_file,
                     .ca_file = options_.ca_file,
                     .join_token = options_.join_token,
                     .hello = hello_,
                     .running = RunningRanks()};
  if (options_.by_certificate) link.certificate.emplace(options_.state_dir);
  link_ = std::make_unique<Link>(std::move(link), clock_,
                                 [this](LinkEvent event) { inbox_.Put(std::move(event)); });
  if (hello_.looks_at_files()) {
    looks_ = std::make_unique<FileLooks>(
        FileLooks::Options{
            .worker = options_.worker, .users = options_.users, .folder = looks_folder_},
        [this](v1::LookAnswer answer) {
          v1::AgentMessage message;
          *message.mutable_look() = std::move(answer);
          link_->Send(std::move(message));
        });
  }
  warm_->Tend(clock_.SinceBoot(), BusyDevices());
  for (;;) {
    const absl::Duration now = Wait(signal_fd);
    const bool tick = now >= next_tick_;
    HandleInbox();
    FenceIfLate(now);
    FinishRanks(now);
    if (reconcile_due_ || tick) ReconcileRanks(now);
    link_->SetRunning(RunningRanks());
    SendEvents(now);
    if (heartbeat_due_ || now >= next_heartbeat_) SendHeartbeat(now);
    if (tick) Tick(now);
    if (leaving_ != Leaving::kNo && ReadyToLeave(now)) break;
  }
  looks_.reset();
  link_.reset();
  for (auto& [name, rank] : ranks_) rank->spool().Save().IgnoreError();
  return absl::OkStatus();
}

absl::Duration Agent::NextDeadline(absl::Duration now) const {
  absl::Duration next = std::min(next_tick_, next_heartbeat_);
  for (const auto& [name, rank] : ranks_) {
    if (!rank->HasProcess()) continue;
    if (rank->pidfd() < 0) next = std::min(next, now + kReapPause);
    if (!fenced_) next = std::min(next, lease_.fence_at());
  }
  return next;
}

absl::Duration Agent::Wait(int signal_fd) {
  std::vector<pollfd> fds = {{.fd = signal_fd, .events = POLLIN},
                             {.fd = inbox_.fd(), .events = POLLIN},
                             {.fd = inotify_.get(), .events = POLLIN}};
  for (const auto& [name, rank] : ranks_) {
    fds.push_back({.fd = rank->pidfd(), .events = POLLIN});
  }
  const absl::Duration now = clock_.SinceBoot();
  const absl::Duration pause =
      std::clamp(NextDeadline(now) - now, absl::ZeroDuration(), absl::Seconds(1));
  const timespec timeout = absl::ToTimespec(pause);
  ppoll(fds.data(), fds.size(), &timeout, nullptr);
  if (fds[0].revents != 0) ReadSignal(signal_fd);
  if (fds[2].revents != 0) {
    char changes[4096];
    while (read(inotify_.get(), changes, sizeof(changes)) > 0) {
    }
  }
  return clock_.SinceBoot();
}

void Agent::HandleInbox() {
  for (LinkEvent& event : inbox_.TakeAll()) {
    switch (event.kind) {
      case LinkEvent::kUp:
        spdlog::info("registered as {} with {}", options_.hello.node(), event.server);
        up_ = true;
        desired_is_fresh_ = false;
        reconciled_version_ = 0;
        // Ranks whose lease ended may have been placed elsewhere meanwhile: they get no right to
        // write before the desired set says that they are still wanted.
        FenceIfLate(clock_.SinceBoot());
        server_takes_columns_ = event.message.welcome().metric_columns();
        server_knows_users_ = event.message.welcome().unix_users();
        lease_.Begin(event.message.welcome(), event.register_sent);
        RenewLeases();
        for (auto& [name, rank] : ranks_) rank->spool().Rewind();
        next_heartbeat_ = clock_.SinceBoot() + lease_.heartbeat_interval();
        if (leaving_ == Leaving::kGiveWorkAway) TellLeave(clock_.SinceBoot());
        break;
      case LinkEvent::kMessage:
        HandleMessage(event.message);
        break;
      case LinkEvent::kDown:
        up_ = false;
        desired_is_fresh_ = false;
        if (looks_ != nullptr) looks_->ForgetWaiting();
        break;
      case LinkEvent::kRefused:
        // Another agent may have this node's name, and so its slots, by now: our orphans must not
        // run beside the ranks that it starts.
        if (!lease_.HoldsAt(clock_.SinceBoot())) Fence(std::string(event.status.message()));
        break;
    }
  }
}

void Agent::HandleMessage(const v1::ServerMessage& message) {
  switch (message.what_case()) {
    case v1::ServerMessage::kDesired:
      desired_ = WithValidNames(message.desired());
      has_desired_ = desired_is_fresh_ = reconcile_due_ = true;
      for (const v1::Assignment& assignment : desired_.assignments()) {
        const auto wanted = ranks_.find(run::RunDirectory::NameOf(assignment.key()));
        if (wanted == ranks_.end()) continue;
        if (!HasDifferentClaim(wanted->second->key().claim(), assignment)) wanted->second->Reopen();
      }
      RenewLeases();
      break;
    case v1::ServerMessage::kLease:
      lease_.Acknowledge(message.lease().heartbeat_id());
      if (leave_beat_ > 0 && message.lease().heartbeat_id() >= leave_beat_) leave_known_ = true;
      RenewLeases();
      break;
    case v1::ServerMessage::kAck:
      HandleAck(message.ack());
      break;
    case v1::ServerMessage::kLog:
      HandleLogRequest(message.log());
      break;
    case v1::ServerMessage::kFree:
      for (const v1::LeftState& state : message.free().states()) kept_states_.Free(state);
      break;
    case v1::ServerMessage::kLook:
      if (looks_ != nullptr) looks_->Ask(message.look());
      break;
    case v1::ServerMessage::kWelcome:
    case v1::ServerMessage::WHAT_NOT_SET:
      spdlog::warn("a message from the server is not understood");
      break;
  }
}

void Agent::RenewLeases() {
  const absl::Duration now = clock_.SinceBoot();
  if (now >= lease_.fence_at()) return;
  fenced_ = false;
  const bool holds = lease_.HoldsAt(now);
  if (holds == orphaned_) {
    orphaned_ = !holds;
    TellAboutOrphans(now);
  }
  for (auto& [name, rank] : ranks_) {
    rank->ExtendLife(lease_.LifeFrom(now), lease_.until(), lease_.fence_at());
    const v1::Assignment* const wanted = FindDesired(name);
    if (holds && desired_is_fresh_ && wanted != nullptr &&
        !HasDifferentClaim(rank->key().claim(), *wanted)) {
      rank->ExtendRight(lease_.holds_until());
    }
  }
}

void Agent::TellAboutOrphans(absl::Duration now) const {
  const auto running = std::count_if(ranks_.begin(), ranks_.end(),
                                     [](const auto& entry) { return entry.second->HasProcess(); });
  if (running == 0) return;
  if (orphaned_) {
    spdlog::warn(
        "the server has not renewed the lease: {} ranks step on, make no checkpoint visible, and "
        "are killed in {}",
        running, absl::FormatDuration(absl::Trunc(lease_.fence_at() - now, absl::Seconds(1))));
  } else {
    spdlog::info("the lease holds again: {} ranks run", running);
  }
}

std::vector<v1::RankKey> Agent::RunningRanks() const {
  std::vector<v1::RankKey> running;
  for (const auto& [name, rank] : ranks_) {
    if (rank->RunsOn() && running.size() < kMostFound) running.push_back(rank->key());
  }
  return running;
}

void Agent::FenceIfLate(absl::Duration now) {
  if (now >= lease_.fence_at()) Fence("the server has not renewed the lease");
}

void Agent::Fence(const std::string& why) {
  if (fenced_) return;
  fenced_ = true;
  for (auto& [name, rank] : ranks_) {
    if (!rank->HasProcess()) continue;
    spdlog::error("{}: killed: {}", name, why);
    rank->Fence();
  }
}

void Agent::HandleAck(const v1::EventAck& ack) {
  const auto it = ranks_.find(run::RunDirectory::NameOf(ack.key()));
  if (it == ranks_.end()) return;
  LocalRank& rank = *it->second;
  // The acknowledgement may be late and belong to what ran under an earlier claim to the rank.
  if (!ack.key().claim().empty() && ack.key().claim() != rank.key().claim()) return;
  rank.spool().Acknowledge(ack.sequence(), ack.fenced());
  last_progress_ = clock_.SinceBoot();
  if (ack.fenced() && rank.HasProcess()) {
    spdlog::info("{}: killed, since the server takes no more of its events", rank.name());
    rank.Kill();
  }
  reconcile_due_ = reconcile_due_ || rank.spool().done();
}

void Agent::HandleLogRequest(const v1::LogRequest& request) {
  v1::AgentMessage answer;
  v1::LogChunk& chunk = *answer.mutable_log();
  chunk.set_request_id(request.request_id());
  const std::string name = run::RunDirectory::NameOf(request.key());
  const auto it = ranks_.find(name);
  if (it == ranks_.end()) {
    chunk.set_error(
        absl::StrCat("node ", options_.hello.node(), " has no log of rank ", name, " (any more)"));
    chunk.set_end(true);
  } else {
    // Looked up before the log is read: if the worker ends in between, the next chunk says so.
    const bool ended = !it->second->HasProcess();
    const auto read = it->second->log().Read(
        request.offset(), std::clamp<int64_t>(request.max_bytes(), 0, kMostLogBytes));
    if (read.ok()) {
      chunk.set_data(read->data);
      chunk.set_offset(read->offset);
      chunk.set_end(ended && read->offset + static_cast<int64_t>(read->data.size()) >= read->end);
    } else {
      chunk.set_error(read.status().ToString());
    }
  }
  link_->Send(std::move(answer));
}

void Agent::SendEvents(absl::Duration now) {
  if (!up_) return;
  for (auto& [name, rank] : ranks_) {
    if (rank->retired() || rank->spool().done()) continue;
    for (;;) {
      const bool had_state = rank->spool().has_state();
      absl::StatusOr<std::optional<v1::EventBatch>> batch = rank->spool().NextBatch();
      if (rank->spool().has_state() != had_state) reconcile_due_ = true;
      if (!batch.ok()) {
        const bool damaged = absl::IsDataLoss(batch.status());  // else the next tick tries again
        if (troubled_.insert(name).second) {
          spdlog::error("{}: {}its events cannot be read: {}", name,
                        damaged ? "killed, since " : "", batch.status().ToString());
        }
        if (damaged) rank->Fail(v1::Failure::STORAGE, std::string(batch.status().message()));
        break;
      }
      if (!*batch) break;
      last_progress_ = std::max(last_progress_, now);
      for (v1::RankEvent& event : *(*batch)->mutable_events()) {
        if (event.has_failure()) AddXids(*rank, *event.mutable_failure());
      }
      v1::AgentMessage message;
      *message.mutable_events() =
          server_takes_columns_ ? PackMetrics(**std::move(batch)) : **std::move(batch);
      link_->Send(std::move(message));
    }
  }
}

void Agent::SendHeartbeat(absl::Duration now) {
  heartbeat_due_ = false;
  next_heartbeat_ = now + lease_.heartbeat_interval();
  if (!up_) return;
  v1::AgentMessage message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_id(lease_.Beat(now));
  heartbeat.set_desired_version(reconciled_version_);
  for (const auto& [name, rank] : ranks_) {
    if (rank->HasProcess()) *heartbeat.add_present() = rank->key();
  }
  // GPUs come first among the slots, so a GPU has the same index as its slot.
  for (const auto& [index, usage] : gpus_->Usage()) (*heartbeat.mutable_usage())[index] = usage;
  DescribeHealth(*heartbeat.mutable_health());
  if (now >= next_left_states_) {
    next_left_states_ = now + kBetweenLeftStates;
    for (v1::LeftState& state : kept_states_.All()) *heartbeat.add_left_states() = std::move(state);
  }
  link_->Send(std::move(message));
}

void Agent::DescribeHealth(v1::NodeHealth& health) const {
  struct statvfs disk {};
  if (statvfs(ranks_folder_.c_str(), &disk) == 0) {
    const auto block = static_cast<int64_t>(disk.f_frsize);
    health.set_disk_free_bytes(static_cast<int64_t>(disk.f_bavail) * block);
    health.set_disk_total_bytes(static_cast<int64_t>(disk.f_blocks) * block);
  }
  health.set_state_dir(options_.state_dir);
  const absl::StatusOr<Machine> machine = ReadMachine();
  const absl::StatusOr<int64_t> free = ReadFreeMemory();
  if (machine.ok() && free.ok()) {
    health.set_memory_total_bytes(machine->memory_bytes);
    health.set_memory_free_bytes(*free);
  }
  health.set_failed_starts(failed_starts_);
  health.set_failed_writes(failed_writes_);
}

void Agent::Tick(absl::Duration now) {
  next_tick_ = now + kTick;
  if (!lease_.HoldsAt(now)) RenewLeases();
  // Loading a warm worker would take CPU time from a rank that is about to make its first step.
  if (leaving_ == Leaving::kNo && !AwaitsFirstStep(now)) warm_->Tend(now, BusyDevices());
  DropKeptStates(now);
  bool waiting = false;
  for (auto& [name, rank] : ranks_) {
    if (rank->retired()) continue;
    rank->RotateLog(kLogFileBytes);
    const absl::Status saved = rank->spool().Save();
    if (!saved.ok()) {
      ++failed_writes_;
      spdlog::warn("{}: {}", name, saved.ToString());
    }
    waiting = waiting || !rank->spool().idle();
  }
  if (waiting && now - last_progress_ > kResendAfter) {
    for (auto& [name, rank] : ranks_) rank->spool().Rewind();
    last_progress_ = now;
  }
  link_->ResetIfSilentFor(std::max(kSilence, 3 * lease_.heartbeat_interval()));
  // A rank's directory is what keeps the rank from being started twice: it is deleted only when the
  // server is known not to ask for the rank any more.
  if (now >= next_cleaning_ && desired_is_fresh_) {
    next_cleaning_ = now + kCleaning;
    ForgetOldRanks();
  }
}

}  // namespace trainyard
