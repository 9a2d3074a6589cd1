// What the agent does to ranks: starts, stops, finishes and forgets them.

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/agent/agent.h"
#include "executor/agent/project_environment.h"
#include "executor/agent/reconcile.h"
#include "executor/agent/retention.h"
#include "executor/agent/slots.h"
#include "executor/agent/unix_user.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr absl::Duration kFirstStepPatience = absl::Seconds(10);
// Between attempts to start a rank or to record its end, while the disk is full.
constexpr absl::Duration kRecordPause = absl::Seconds(1);
// How long to wait for the driver to tell why a process on a GPU failed.
constexpr absl::Duration kDriverPatience = absl::Milliseconds(250);
// So long after its start a rank that has its state is taken to train: its gang might fail before
// all have it, and begin anew.
constexpr absl::Duration kSettled = absl::Seconds(30);

// In the file keep-state: what follows the bytes where a gang is broken.
constexpr char kAlone[] = " alone";

int64_t HalfOfFreeMemory() { return ReadFreeMemory().value_or(0) / 2; }

// Of what the file keep-state holds: all but how many bytes, if there are some.
std::string KindOf(absl::string_view wish) {
  const bool none = absl::StartsWith(wish, "0 ");
  return absl::StrCat(none ? "0" : "", wish.substr(std::min(wish.find(' '), wish.size())));
}

// Another try may do better, also on another node, unless what is wrong is the project's.
v1::Failure NotStarted(const absl::Status& why) {
  const bool of_project = absl::IsFailedPrecondition(why);
  v1::Failure failure;
  failure.set_category(of_project                       ? v1::Failure::USER
                       : absl::IsResourceExhausted(why) ? v1::Failure::STORAGE
                                                        : v1::Failure::INTERNAL);
  failure.set_message(absl::StrCat("the agent could not start the worker: ", why.message()));
  failure.set_retryable(!of_project);
  return failure;
}

int64_t BytesIn(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    // What the disk holds of it, whatever length a rank gave it.
    struct stat info {};
    if (lstat(entry.path().c_str(), &info) == 0) bytes += int64_t{info.st_blocks} * 512;
  }
  return bytes;
}

absl::Time ModificationTime(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::InfinitePast();
  return absl::TimeFromTimespec(info.st_mtim);
}

}  // namespace

void Agent::FinishRanks(absl::Duration now) {
  bool finished = false;
  const bool retry = now >= next_record_;
  if (retry) next_record_ = now + kRecordPause;
  for (auto& [name, rank] : ranks_) {
    if (rank->recorded() || (!rank->HasProcess() && !retry)) continue;
    const auto remark = [this, &rank = *rank] {
      const std::string said = WhatTheDriverSaid(rank, true);
      return said.empty() ? said : absl::StrCat("\n", said, "\n");
    };
    const bool had_process = rank->HasProcess();
    if (!rank->TryFinish(remark)) {
      failed_writes_ += !rank->HasProcess() && (retry || had_process);
      continue;
    }
    spdlog::info("{}: gone", name);
    kept_states_.Keep(rank->key(), rank->TakeMemory(), rank->spool().kept_step(), now);
    finished = true;
  }
  if (!finished) return;
  reconcile_due_ = heartbeat_due_ = true;
  std::vector<pid_t> known = warm_->Pids();
  for (const auto& [name, rank] : ranks_) {
    if (rank->HasProcess()) known.push_back(rank->pid());
  }
  if (looks_ == nullptr) return KillStrayChildren(known);
  looks_->WithPids([&known](const std::set<pid_t>& pids) {
    known.insert(known.end(), pids.begin(), pids.end());
    KillStrayChildren(known);
  });
}

void Agent::ReconcileRanks(absl::Duration now) {
  reconcile_due_ = false;
  const bool ends = leaving_ == Leaving::kLeaveWorkers || leaving_ == Leaving::kKillWorkers;
  if (!has_desired_ || ends) return;
  std::vector<PresentRank> present;
  for (const auto& [name, rank] : ranks_) present.push_back(rank->Describe(now));
  const bool may_start = up_ && desired_is_fresh_ && lease_.HoldsAt(now) && now >= next_start_;
  for (const Action& action : Reconcile(desired_, present, may_start)) Perform(action, now);
  for (auto& [name, rank] : ranks_) {
    const v1::Assignment* wanted = FindDesired(name);
    if (wanted == nullptr) continue;
    // The user may have paused what was only to be resized, or the gang has broken since.
    const std::string wish = rank->suspends() ? KeepWish(*wanted) : "";
    if (KindOf(wish) != KindOf(rank->keep_state())) rank->SetKeepState(wish);
    if (wanted->wish() == v1::Assignment::SUSPEND) {
      rank->SetGrace(now, absl::Milliseconds(wanted->grace_ms()));
    }
  }
  if (desired_is_fresh_ && reconciled_version_ != desired_.version()) {
    reconciled_version_ = desired_.version();
    heartbeat_due_ = true;
  }
}

const v1::Assignment* Agent::FindDesired(const std::string& name) const {
  for (const v1::Assignment& assignment : desired_.assignments()) {
    if (run::RunDirectory::NameOf(assignment.key()) == name) return &assignment;
  }
  return nullptr;
}

void Agent::Perform(const Action& action, absl::Duration now) {
  const v1::Assignment* wanted = FindDesired(action.name);
  switch (action.kind) {
    case Action::kStart: {
      absl::StatusOr<std::unique_ptr<LocalRank>> rank = StartRank(*wanted);
      if (rank.ok()) {
        ranks_[action.name] = *std::move(rank);
        break;
      }
      ++failed_starts_;
      v1::RankEvent event;
      *event.mutable_failure() = NotStarted(rank.status());
      Refuse(*wanted, std::move(event));
      break;
    }
    case Action::kDecline: {
      // The rank never ran, so the state that it leaves is the one that it would have started from.
      v1::RankEvent event;
      event.mutable_finished()->set_outcome(v1::RankEvent::Finished::SUSPENDED);
      event.mutable_finished()->set_step(wanted->restore().step());
      Refuse(*wanted, std::move(event));
      break;
    }
    case Action::kSuspend:
      spdlog::info("{}: asked to leave", action.name);
      ranks_.at(action.name)->SetKeepState(KeepWish(*wanted));
      ranks_.at(action.name)->Suspend(now, absl::Milliseconds(wanted->grace_ms()));
      break;
    case Action::kKill:
      spdlog::info("{}: killed, since it is not wanted here any more", action.name);
      ranks_.at(action.name)->Kill();
      break;
    case Action::kRetire:
      ranks_.at(action.name)->Retire();
      ranks_.at(action.name)->spool().Save().IgnoreError();
      next_cleaning_ = now;
      break;
    case Action::kForget:
      if (ForgetRank(action.name)) reconcile_due_ = true;
      break;
  }
}

bool Agent::ForgetRank(const std::string& name) {
  std::error_code error;
  std::filesystem::remove_all(ranks_.at(name)->path(), error);
  if (error) spdlog::warn("{}: {}", name, error.message());
  troubled_.erase(name);
  ranks_.erase(name);
  return !error;
}

absl::StatusOr<std::unique_ptr<LocalRank>> Agent::StartRank(const v1::Assignment& assignment) {
  TY_ASSIGN_OR_RETURN(run::Orders orders, OrdersFor(assignment));
  if (orders.user) {
    TY_RETURN_IF_ERROR(MakeProjectFolder(assignment.checkpoint_root(), *orders.user));
  }
  const std::string as = orders.user ? ", as " + orders.user->name : "";
  TY_ASSIGN_OR_RETURN(WaitingWorker worker, warm_->Take(orders.device));
  std::set<std::string> devices;
  for (const int index : assignment.slots()) devices.insert(DeviceOf(options_.hello.slots(index)));
  warm_->MakeRoom(devices);
  FileDescriptor state;
  if (assignment.kept().step() > 0) {
    state = kept_states_.FileOf(assignment.key().job_uid(), assignment.kept().attempt(),
                                clock_.SinceBoot());
    orders.kept_state_room = HalfOfFreeMemory();
  }
  const std::string device = orders.device;
  TY_ASSIGN_OR_RETURN(auto rank,
                      LocalRank::Start(PathOf(assignment), assignment, std::move(worker),
                                       std::move(orders), state, lease_.until(), clock_));
  rank->ExtendRight(lease_.holds_until());
  spdlog::info("{}: started {} on {} (pid {}{})", rank->name(), assignment.job_name(), device,
               rank->pid(), as);
  WatchEvents(*rank);
  return rank;
}

absl::StatusOr<run::Orders> Agent::OrdersFor(const v1::Assignment& assignment) const {
  const WorkerProgram& worker = options_.worker;
  run::Orders orders{.threads = 0, .confined = worker.confined && !worker.roots.empty()};
  for (const int index : assignment.slots()) {
    if (index < 0 || index >= options_.hello.slots_size()) {
      return absl::InvalidArgumentError(absl::StrCat("this node has no slot ", index));
    }
    const v1::Slot& slot = options_.hello.slots(index);
    orders.threads += slot.cpu_threads();
    if (orders.device.empty()) orders.device = DeviceOf(slot);
  }
  if (orders.device.empty()) return absl::InvalidArgumentError("no slot was given");
  if (assignment.unix_user().empty() && options_.users.required && !server_knows_users_) {
    return absl::UnavailableError(
        "the server is of a version that does not say as whom projects run (--require-user)");
  }
  TY_ASSIGN_OR_RETURN(orders.user, FindUnixUser(assignment.unix_user(), options_.users));
  std::optional<std::map<std::string, std::string>> of_project;
  if (!options_.project_environments.empty()) {
    TY_ASSIGN_OR_RETURN(
        of_project, ReadProjectEnvironment(options_.project_environments, assignment.job_name()));
  }
  if (of_project) {
    orders.environment = *std::move(of_project);
  } else if (!orders.user) {
    orders.environment = OwnCredentials(environ);
  }
  return orders;
}

std::string Agent::KeepWish(const v1::Assignment& wanted) const {
  const int64_t room = RoomForState(wanted.key());
  switch (wanted.keep_state()) {
    case v1::Assignment::HERE:
      return absl::StrCat(room, " here");
    case v1::Assignment::ELSEWHERE:
      return absl::StrCat(room, " elsewhere");
    case v1::Assignment::ALONE:
      return absl::StrCat(IsKeeper(wanted.key()) ? room : 0, kAlone,
                          wanted.survivors().empty() ? "" : " ",
                          absl::StrJoin(wanted.survivors(), ","));
    default:
      return "";
  }
}

bool Agent::IsKeeper(const v1::RankKey& key) const {
  const auto self = ranks_.find(run::RunDirectory::NameOf(key));
  if (self == ranks_.end()) return false;
  const auto keeps = [](const LocalRank& rank) {
    return rank.HasProcess() && absl::StartsWith(KindOf(rank.keep_state()), kAlone);
  };
  // An agent before this one may have chosen it. This one has not read its Failure event if that
  // was acknowledged.
  if (keeps(*self->second)) return true;
  if (!self->second->spool().has_state()) return false;
  return std::none_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    const LocalRank& other = *entry.second;
    const bool same = other.key().job_uid() == key.job_uid() &&
                      other.key().attempt() == key.attempt() && entry.first != self->first;
    return same && keeps(other) && FindDesired(entry.first) != nullptr;
  });
}

int64_t Agent::RoomForState(const v1::RankKey& of) const {
  int64_t slots = 0;  // also of ranks that have ended already
  for (const auto& [name, rank] : ranks_) {
    const bool same =
        rank->key().job_uid() == of.job_uid() && rank->key().attempt() == of.attempt();
    if (same) slots += static_cast<int64_t>(rank->slots().size());
  }
  const int64_t all = std::max(1, options_.hello.slots_size());
  return HalfOfFreeMemory() / all * std::min(slots, all);
}

void Agent::DropKeptStates(absl::Duration now) {
  if (kept_states_.empty()) return;
  std::map<std::pair<std::string, int64_t>, bool> all_train;  // by job and attempt
  for (const auto& [name, rank] : ranks_) {
    const v1::RankKey& key = rank->key();
    bool& train = all_train.try_emplace({key.job_uid(), key.attempt()}, true).first->second;
    train = train && rank->spool().has_restored() && now - rank->started() > kSettled;
  }
  for (const auto& [attempt, train] : all_train) {
    if (train) kept_states_.AttemptTrains(attempt.first, attempt.second);
  }
  kept_states_.DropOld(now);
}

void Agent::Refuse(const v1::Assignment& assignment, v1::RankEvent event) {
  const std::string name = run::RunDirectory::NameOf(assignment.key());
  auto rank = LocalRank::MakeGone(PathOf(assignment), assignment, {std::move(event)}, clock_);
  if (!rank.ok()) {
    spdlog::error("{}: cannot be refused, will try again: {}", name, rank.status().ToString());
    next_start_ = clock_.SinceBoot() + kRecordPause;
    return;
  }
  spdlog::warn("{}: not started", name);
  ranks_[name] = *std::move(rank);
}

std::string Agent::PathOf(const v1::Assignment& assignment) const {
  return absl::StrCat(ranks_folder_, "/", run::RunDirectory::NameOf(assignment.key()));
}

std::vector<Standby> Agent::WhatWorkersWaitFor() const {
  std::vector<Standby> wanted;
  int cpus = 0;
  for (const v1::Slot& slot : options_.hello.slots()) {
    if (slot.device() != v1::Resources::CUDA) {
      ++cpus;
    } else if (options_.standby_gpus) {
      wanted.push_back({.device = DeviceOf(slot), .threads = slot.cpu_threads()});
    }
  }
  if (cpus > 0) wanted.resize(wanted.size() + std::max(0, options_.standby));
  return wanted;
}

std::set<std::string> Agent::BusyDevices() const {
  std::set<std::string> busy;
  for (const auto& [name, rank] : ranks_) {
    if (!rank->HasProcess()) continue;
    for (const int gpu : GpusOf(*rank)) busy.insert(DeviceOf(options_.hello.slots(gpu)));
  }
  return busy;
}

std::set<int> Agent::GpusOf(const LocalRank& rank) const {
  std::set<int> gpus;  // GPUs come first among the slots: same index as the slot
  for (const int index : rank.slots()) {
    if (index < 0 || index >= options_.hello.slots_size()) continue;
    if (options_.hello.slots(index).device() == v1::Resources::CUDA) gpus.insert(index);
  }
  return gpus;
}

std::string Agent::WhatTheDriverSaid(const LocalRank& rank, bool wait) {
  const std::set<int> gpus = GpusOf(rank);
  const absl::Duration now = clock_.SinceBoot();
  const bool patient = wait && !gpus.empty() && now >= next_driver_wait_;
  if (patient) next_driver_wait_ = now + 4 * kDriverPatience;
  std::vector<std::string> said;
  for (const Xid& xid :
       gpus_->XidsSince(rank.started(), gpus, patient ? kDriverPatience : absl::ZeroDuration())) {
    said.push_back(Describe(xid));
  }
  return said.empty() ? "" : absl::StrCat("the driver reported ", absl::StrJoin(said, ", "));
}

void Agent::AddXids(const LocalRank& rank, v1::Failure& failure) {
  const std::string said = WhatTheDriverSaid(rank, failure.category() == v1::Failure::DEVICE);
  if (!said.empty()) absl::StrAppend(failure.mutable_message(), "; ", said);
}

bool Agent::AwaitsFirstStep(absl::Duration now) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    LocalRank& rank = *entry.second;
    return rank.HasProcess() && !rank.spool().has_metrics() &&
           now - rank.started() < kFirstStepPatience;
  });
}

void Agent::ForgetOldRanks() {
  std::vector<KeptRank> kept;
  for (const auto& [name, rank] : ranks_) {
    if (!rank->retired() || FindDesired(name) != nullptr) continue;
    const std::string mark = run::RunDirectory(rank->path()).acked_path();
    kept.push_back(
        {.name = name, .retired = ModificationTime(mark), .bytes = BytesIn(rank->path())});
  }
  for (const std::string& name : Expired(std::move(kept), RetentionLimits(), clock_.Now())) {
    ForgetRank(name);
  }
}

}  // namespace trainyard
