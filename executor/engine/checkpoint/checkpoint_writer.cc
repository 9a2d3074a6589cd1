#include "executor/engine/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "storage/base/status.h"

namespace trainyard::engine {

CheckpointWriter::CheckpointWriter(ObjectStore& store, CheckpointIdentity identity, int64_t keep,
                                   const plan::Plan& plan, CheckpointListener& listener)
    : store_(store),
      identity_(std::move(identity)),
      keep_(std::max<int64_t>(keep, 2)),
      listener_(listener),
      snapshot_(plan),
      thread_([this] { Run(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void CheckpointWriter::SetDamaged(std::vector<int64_t> steps) {
  absl::MutexLock lock(&mu_);
  damaged_ = std::move(steps);
}

absl::Status CheckpointWriter::Save(int64_t step, bool needed, bool final,
                                    const std::function<absl::Status(Snapshot&)>& copy) {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !busy_; };
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&idle));
    if (!failure_.ok()) return failure_;
    if (saved_step_ == step) return absl::OkStatus();
  }
  TY_RETURN_IF_ERROR(copy(snapshot_));
  absl::MutexLock lock(&mu_);
  request_ = {step, needed, final};
  busy_ = true;
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Wait() {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !busy_; };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&idle));
  return failure_;
}

void CheckpointWriter::Run() {
  const auto called = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return busy_ || stop_; };
  for (;;) {
    Request request;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&called));
      if (!busy_) return;
      request = request_;
    }
    const absl::Status status = Write(request);
    RemoveSettled(absl::ZeroDuration());
    absl::MutexLock lock(&mu_);
    if (!status.ok()) failure_ = status;
    busy_ = false;
  }
}

absl::Status CheckpointWriter::Write(const Request& request) {
  const absl::StatusOr<WrittenCheckpoint> written =
      WriteCheckpoint(store_, identity_, snapshot_, request.step);
  if (!written.ok()) {
    const absl::Status status =
        Annotate(written.status(), absl::StrCat("checkpoint of step ", request.step));
    if (request.needed) return status;
    listener_.OnCheckpointFailed(request.step, status);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> removed = ChooseRemovals(request.step);
  if (!removed.ok()) removed = std::vector<std::string>();  // they are found again next time
  TY_ASSIGN_OR_RETURN(const int64_t report,
                      listener_.OnCheckpoint(*written, request.final, *removed));
  absl::MutexLock lock(&mu_);
  saved_step_ = request.step;
  for (const std::string& uri : *removed) removals_.push_back({uri, report});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CheckpointWriter::ChooseRemovals(int64_t newest) {
  TY_ASSIGN_OR_RETURN(std::vector<int64_t> present, ListSteps(store_, identity_.root));
  absl::MutexLock lock(&mu_);
  damaged_.erase(std::remove(damaged_.begin(), damaged_.end(), newest), damaged_.end());
  std::vector<std::string> uris;
  for (int64_t step : StepsToRemove(std::move(present), newest, keep_, damaged_)) {
    const std::string uri = absl::StrCat(identity_.root, "/", StepFolder(step));
    const auto same = [&](const Removal& removal) { return removal.uri == uri; };
    if (std::none_of(removals_.begin(), removals_.end(), same)) uris.push_back(uri);
  }
  return uris;
}

void CheckpointWriter::RemoveSettled(absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  for (;;) {
    const int64_t settled = listener_.SettledReport();
    std::vector<std::string> uris;
    bool waiting = false;
    {
      absl::MutexLock lock(&mu_);
      for (auto it = removals_.begin(); it != removals_.end();) {
        if (it->report > settled) {
          waiting = true;
          ++it;
          continue;
        }
        uris.push_back(it->uri);
        it = removals_.erase(it);
      }
    }
    // One that cannot be removed now is chosen again after the next checkpoint.
    for (const std::string& uri : uris) store_.Delete(uri).IgnoreError();
    if (!waiting || absl::Now() >= deadline) return;
    absl::SleepFor(absl::Milliseconds(2));
  }
}

}  // namespace trainyard::engine
