#include "executor/agent/local_rank.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <stdio.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "executor/agent/unix_user.h"
#include "executor/run/plain_file.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int64_t kEvidenceBytes = 4096;
constexpr int64_t kReserveBytes = int64_t{32} << 10;  // for a failure, its evidence and the end
// With less free space than this, a worker that failed by its storage is believed to mean this
// disk.
constexpr int64_t kLittleBytes = int64_t{1} << 20;

int64_t FreeBytes(const std::string& folder) {
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) return 0;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

// What fits beside as much of the log.
std::string LastPart(std::string remark) {
  constexpr size_t kMost = kEvidenceBytes / 2;
  if (remark.size() > kMost) remark.erase(0, remark.size() - kMost);
  return remark;
}

// Of a worker that an earlier agent started: the file in which it may leave its state. It may put
// another one in its place at any time, so what is looked at is what is opened.
FileDescriptor MemoryOf(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", run::kStateDescriptor);
  const FileDescriptor found(open(path.c_str(), O_PATH | O_CLOEXEC));
  const std::string ours = absl::StrCat("/proc/self/fd/", found.get());
  char target[64] = {};
  const std::string expected = absl::StrCat("/memfd:", run::kStateFileName);
  const ssize_t length = readlink(ours.c_str(), target, sizeof(target));
  struct statfs system {};
  const bool in_memory = found.valid() && fstatfs(found.get(), &system) == 0 &&
                         system.f_type == static_cast<decltype(system.f_type)>(TMPFS_MAGIC);
  if (!in_memory || length < 0 || !absl::StartsWith(absl::string_view(target, length), expected)) {
    return {};
  }
  return FileDescriptor(open(ours.c_str(), O_RDWR | O_CLOEXEC));
}

// Waits until no process of the group that works in `path` is left, and says so every few seconds:
// until then the agent must not offer their slots. One that hangs in a driver survives SIGKILL.
void EndOrphans(const std::string& rank, pid_t group, const std::string& path, Clock& clock) {
  constexpr absl::Duration kPatience = absl::Seconds(5);
  absl::Duration next = clock.SinceBoot() + kPatience;
  while (KillOrphansOf(group, path)) {
    absl::SleepFor(absl::Milliseconds(2));
    if (clock.SinceBoot() < next) continue;
    next += kPatience;
    spdlog::error(
        "{}: its processes of group {} do not end although they were killed; this node "
        "offers no slots until they do, or the machine is restarted",
        rank, group);
  }
}

}  // namespace

LocalRank::LocalRank(const std::string& path, v1::RankKey key, Clock& clock)
    : name_(run::RunDirectory::NameOf(key)),
      key_(key),
      directory_(path),
      clock_(clock),
      spool_(directory_, key),
      log_(directory_.log_path()),
      started_(clock.SinceBoot()) {}

absl::StatusOr<std::unique_ptr<LocalRank>> LocalRank::Start(
    const std::string& path, const v1::Assignment& assignment, WaitingWorker worker,
    run::Orders orders, const FileDescriptor& state, absl::Duration lease_until, Clock& clock) {
  // Everything is in place before the folder takes its name, so a directory that an agent finds
  // after a crash is whole, and its worker either runs with a lease or was never told anything.
  const run::RunDirectory waiting(worker.folder);
  absl::Status ready = waiting.WriteAssignment(assignment);
  if (ready.ok()) ready = run::WritePlainFile(waiting.pid_path(), worker.process.id().ToString());
  if (ready.ok()) ready = run::WritePlainFile(waiting.events_path(), "");
  if (ready.ok())
    ready = run::WritePlainFile(waiting.reserve_path(), std::string(kReserveBytes, '\1'));
  absl::StatusOr<run::LeaseFile> lease = run::LeaseFile::Open(waiting.lease_path(), true);
  if (ready.ok()) ready = lease.status();
  if (ready.ok()) lease->ExtendLife(lease_until);
  if (ready.ok() && orders.user) ready = HandOver(worker.folder, *orders.user);
  if (ready.ok() && rename(worker.folder.c_str(), path.c_str()) != 0) {
    ready = ErrnoStatus(errno, path);
  }
  if (!ready.ok()) {
    worker.process.KillGroup();
    while (!worker.process.TryReap()) absl::SleepFor(absl::Milliseconds(1));
    std::error_code error;
    std::filesystem::remove_all(worker.folder, error);
    return ready;
  }
  auto rank = std::unique_ptr<LocalRank>(new LocalRank(path, assignment.key(), clock));
  rank->job_name_ = assignment.job_name();
  rank->slots_.assign(assignment.slots().begin(), assignment.slots().end());
  rank->lease_ = *std::move(lease);
  rank->process_ = std::move(worker.process);
  rank->memory_ = std::move(worker.memory);

  orders.run_directory = orders.user ? "." : path;
  // A worker that died meanwhile shows as EPIPE, and then by its end.
  const absl::Status told = run::GiveOrders(worker.socket.get(), orders, state.get());
  if (!told.ok()) rank->Fail(v1::Failure::LOST, std::string(told.message()));
  return rank;
}

absl::StatusOr<std::unique_ptr<LocalRank>> LocalRank::MakeGone(
    const std::string& path, const v1::Assignment& assignment,
    const std::vector<v1::RankEvent>& events, Clock& clock) {
  const run::RunDirectory directory(path);
  TY_RETURN_IF_ERROR(directory.WriteAssignment(assignment));
  auto rank = std::unique_ptr<LocalRank>(new LocalRank(path, assignment.key(), clock));
  rank->job_name_ = assignment.job_name();
  rank->status_ = ExitStatus{};
  rank->last_words_ = events;
  rank->TryFinish();
  return rank;
}

absl::StatusOr<std::unique_ptr<LocalRank>> LocalRank::Adopt(const std::string& path, Clock& clock) {
  const std::string name = std::filesystem::path(path).filename().string();
  TY_ASSIGN_OR_RETURN(v1::RankKey key, run::RunDirectory::ParseName(name));
  const absl::StatusOr<v1::Assignment> assignment = run::RunDirectory(path).ReadAssignment();
  if (assignment.ok()) key.set_claim(assignment->key().claim());
  auto rank = std::unique_ptr<LocalRank>(new LocalRank(path, key, clock));
  if (assignment.ok()) {
    rank->job_name_ = assignment->job_name();
    rank->slots_.assign(assignment->slots().begin(), assignment->slots().end());
  } else {
    spdlog::warn("{}: {}", name, assignment.status().ToString());
  }
  // No pid: the machine crashed before it reached the disk, so nothing runs.
  const absl::StatusOr<std::string> pid = ReadFile(rank->directory_.pid_path(), 100);
  const absl::StatusOr<ProcessId> id = pid.ok() ? ProcessId::Parse(*pid) : pid.status();
  if (id.ok()) {
    absl::StatusOr<Process> process = Process::Adopt(*id);
    absl::StatusOr<run::LeaseFile> lease =
        run::LeaseFile::Open(rank->directory_.lease_path(), true);
    if (lease.ok()) rank->lease_ = *std::move(lease);
    if (process.ok()) {
      rank->process_ = *std::move(process);
      rank->memory_ = MemoryOf(id->pid);
      rank->keep_state_ =
          ReadFile(rank->directory_.keep_state_path(), run::kLongestKeepState).value_or("");
      // Without a lease that we can extend it would end soon anyway.
      if (!rank->lease_) rank->Kill();
      return rank;
    }
    EndOrphans(name, id->pid, path, clock);
  }
  rank->status_ = ExitStatus{.unknown = true};
  // Whatever it did, its lease would not have let it live until now.
  if (rank->lease_until() > absl::ZeroDuration() && rank->lease_until() < clock.SinceBoot()) {
    rank->status_ = ExitStatus{.code = run::kExitFenced};
  }
  rank->TryFinish();
  if (rank->spool_.done()) rank->retired_ = true;
  return rank;
}

PresentRank LocalRank::Describe(absl::Duration now) const {
  PresentRank present{.name = name_, .claim = key_.claim(), .slots = slots_};
  present.phase = !process_   ? PresentRank::kGone
                  : stopping_ ? PresentRank::kStopping
                              : PresentRank::kAlive;
  present.listens = spool_.has_begun();
  present.suspend_sent = suspend_sent_;
  present.grace_over = suspend_sent_ && now >= suspend_deadline_;
  present.delivered = recorded() && spool_.done();
  present.retired = retired_;
  return present;
}

void LocalRank::ExtendLife(absl::Duration until, absl::Duration lease_until,
                           absl::Duration fence_at) {
  if (!process_ || !lease_) return;
  lease_->ExtendLife(lease_->tells_one_time() ? lease_until : until);
  lease_->ExtendFence(fence_at);
}

void LocalRank::ExtendRight(absl::Duration until) {
  if (process_ && lease_) lease_->ExtendRight(until);
}

void LocalRank::Suspend(absl::Duration now, absl::Duration grace) {
  if (!process_) return;
  process_->Signal(SIGTERM);
  suspend_sent_ = true;
  SetGrace(now, grace);
}

void LocalRank::SetGrace(absl::Duration now, absl::Duration grace) {
  if (!suspend_sent_ || grace == grace_) return;
  grace_ = grace;
  if (grace > absl::ZeroDuration()) suspend_deadline_ = now + grace;
}

void LocalRank::SetKeepState(const std::string& wish) {
  if (wish == keep_state_ || !process_ || !memory_.valid()) return;
  const std::string path = directory_.keep_state_path();
  if (wish.empty()) {
    unlink(path.c_str());
  } else if (const absl::Status told = run::ReplacePlainFile(path, wish, run::kForGroup);
             !told.ok()) {
    spdlog::warn(
        "{}: its job writes a checkpoint, since it cannot be told to leave its state in "
        "memory: {}",
        name_, told.ToString());
    return;
  }
  keep_state_ = wish;
}

FileDescriptor LocalRank::TakeMemory() {
  // What an adopted process ended with is not known; its file tells whether it is whole.
  // One whose gang broke fails, or is killed, after it has left it.
  const bool leaves = status_ && status_->signal == 0 &&
                      (status_->code == run::kExitDone || status_->code == run::kExitGang);
  const bool well = leaves || spool_.kept_step() > 0 || (status_ && status_->unknown);
  FileDescriptor memory = std::move(memory_);
  return well ? std::move(memory) : FileDescriptor();
}

void LocalRank::Kill() {
  if (!process_) return;
  killed_ = killed_ || !process_->Ends();
  process_->KillGroup();
  stopping_ = true;
}

void LocalRank::Fence() {
  fenced_ = fenced_ || (process_ && !stopping_);
  Kill();
}

void LocalRank::AddFailure(v1::Failure::Category category, const std::string& why) {
  if (!last_words_.empty()) return;
  v1::Failure& failure = *last_words_.emplace_back().mutable_failure();
  failure.set_category(category);
  failure.set_message(why);
  failure.set_retryable(true);
}

void LocalRank::Fail(v1::Failure::Category category, const std::string& why) {
  AddFailure(category, why);
  Kill();
}

void LocalRank::Reopen() {
  if (!spool_.Reopen()) return;
  retired_ = false;
  fenced_ = true;  // killed because the server wanted no more: nobody's fault
}

bool LocalRank::TryFinish(const std::function<std::string()>& remark) {
  if (recorded()) return false;
  if (process_) {
    status_ = process_->TryReap();
    if (!status_) return false;
    process_.reset();
    lease_.reset();
  }
  // Reported as if the worker's own watchdog had been faster: nobody's fault, rather than a signal
  // of unknown origin.
  if (fenced_ && (status_->unknown || status_->signal == SIGKILL)) {
    status_ = ExitStatus{.code = run::kExitFenced};
  }
  v1::RankEvent::Exited exited;
  exited.set_exit_code(status_->code);
  exited.set_signal(status_->signal);
  exited.set_lost(status_->unknown);
  if (!status_->unknown) exited.set_killed(killed_);
  const bool by_itself = !stopping_ && (status_->signal != 0 || status_->code == run::kExitDevice);
  if (remark != nullptr && by_itself && remark_.empty()) remark_ = LastPart(remark());
  exited.set_evidence(log_.LastLines(kEvidenceBytes - static_cast<int64_t>(remark_.size())) +
                      remark_);
  if (status_->code == run::kExitStorage && FreeBytes(path()) < kLittleBytes) TellDiskIsFull();
  absl::Status appended = spool_.AppendLast(last_words_, exited, clock_);
  if (absl::IsResourceExhausted(appended)) {
    TellDiskIsFull();
    unlink(directory_.reserve_path().c_str());
    appended = spool_.AppendLast(last_words_, exited, clock_);
  }
  if (!appended.ok()) {
    spdlog::error("{}: cannot record its end, will try again: {}", name_, appended.ToString());
    return false;
  }
  unlink(directory_.reserve_path().c_str());
  return true;
}

void LocalRank::TellDiskIsFull() {
  AddFailure(v1::Failure::STORAGE,
             absl::StrCat("the disk is full: ", FreeBytes(path()), " bytes are free in ",
                          std::filesystem::path(path()).parent_path().string(),
                          ", where the agent keeps what ranks write; free some"));
}

void LocalRank::RotateLog(int64_t limit) {
  const absl::Status rotated = log_.RotateIfLarger(limit);
  if (!rotated.ok()) spdlog::warn("{}: {}", name_, rotated.ToString());
}

}  // namespace trainyard
