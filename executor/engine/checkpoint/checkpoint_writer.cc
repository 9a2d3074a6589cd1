#include "executor/engine/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/time/clock.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/retention.h"
#include "storage/base/status.h"
#include "storage/objects/packed_folder.h"

namespace trainyard::engine {
namespace {

// Removals in one report; the rest is found again after the next checkpoint. The server takes 1024.
constexpr size_t kMostRemovals = 256;
// Between looks at the right to write.
constexpr absl::Duration kLook = absl::Milliseconds(20);

}  // namespace

CheckpointWriter::CheckpointWriter(ObjectStore& store, CheckpointIdentity identity,
                                   const plan::Plan& plan, CheckpointListener& listener,
                                   Snapshot::Allocate allocate)
    : store_(store),
      identity_(std::move(identity)),
      listener_(listener),
      snapshot_(plan, identity_.spec.model(), std::move(allocate)),
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

absl::Status CheckpointWriter::Save(CheckpointContent content, const Purpose& purpose,
                                    const std::function<absl::Status(Snapshot&)>& copy) {
  {
    absl::MutexLock lock(&mu_);
    AwaitIdle(/*give_up=*/true);
    if (!failure_.ok()) return failure_;
    if (saved_ && saved_->step == content.step && saved_->run == content.run) {
      return absl::OkStatus();
    }
  }
  TY_RETURN_IF_ERROR(copy(snapshot_));
  absl::MutexLock lock(&mu_);
  request_ = {std::move(content), purpose};
  busy_ = true;
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Pack(const CheckpointContent& content, int file, int64_t most_bytes,
                                    const std::function<absl::Status(Snapshot&)>& copy) {
  {
    absl::MutexLock lock(&mu_);
    AwaitIdle(/*give_up=*/true);
    if (!failure_.ok()) return failure_;
  }
  TY_RETURN_IF_ERROR(copy(snapshot_));
  return PackBeside(content, file, most_bytes, snapshot_);
}

absl::Status CheckpointWriter::PackBeside(const CheckpointContent& content, int file,
                                          int64_t most_bytes, const Snapshot& snapshot) const {
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<PackedFolderWriter> folder,
                      PackedFolderWriter::Begin(file, most_bytes));
  return PackCheckpoint(*folder, identity_, content, snapshot);
}

void CheckpointWriter::AwaitIdle(bool give_up) {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !busy_; };
  give_up_ = give_up;
  mu_.Await(absl::Condition(&idle));
  give_up_ = false;
}

absl::Status CheckpointWriter::Wait() {
  absl::MutexLock lock(&mu_);
  AwaitIdle(/*give_up=*/false);
  return std::exchange(failure_, absl::OkStatus());
}

void CheckpointWriter::AwaitWritten() {
  absl::MutexLock lock(&mu_);
  AwaitIdle(/*give_up=*/false);
}

bool CheckpointWriter::Failed(int64_t step) {
  absl::MutexLock lock(&mu_);
  AwaitIdle(/*give_up=*/true);
  return failed_step_ == step;
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

absl::Status CheckpointWriter::AwaitRight(int64_t step) {
  if (listener_.MayWrite()) return absl::OkStatus();
  listener_.OnCheckpointWaits(step);
  absl::MutexLock lock(&mu_);
  while (!give_up_) {
    mu_.AwaitWithTimeout(absl::Condition(&give_up_), kLook);
    if (listener_.MayWrite()) return absl::OkStatus();
  }
  return absl::UnavailableError(
      "not made visible: the lease of this node was not renewed before training went on from it");
}

absl::Status CheckpointWriter::Write(const Request& request) {
  const absl::StatusOr<WrittenCheckpoint> written =
      WriteCheckpoint(store_, identity_, request.content, snapshot_,
                      [&] { return AwaitRight(request.content.step); });
  if (!written.ok()) {
    const absl::Status status =
        Annotate(written.status(), absl::StrCat("checkpoint of step ", request.content.step));
    if (request.purpose.needed) return status;
    {
      absl::MutexLock lock(&mu_);
      failed_step_ = request.content.step;
    }
    listener_.OnCheckpointFailed(request.content.step, status);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> removed = ChooseRemovals(request);
  if (!removed.ok()) removed = std::vector<std::string>();  // they are found again next time
  TY_ASSIGN_OR_RETURN(const int64_t report,
                      listener_.OnCheckpoint(*written, request.purpose.final, *removed));
  absl::MutexLock lock(&mu_);
  saved_ = request.content;
  for (const std::string& uri : *removed) removals_.push_back({uri, report});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CheckpointWriter::ChooseRemovals(const Request& request) {
  const int64_t newest = request.content.step;
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> present, ListSteps(store_, identity_.root));
  const std::vector<int64_t> apart =
      StepsKeptBesidesNewest(present, newest, identity_.spec, request.content.run);
  const int64_t keep = std::max<int64_t>(identity_.spec.checkpoint().keep(), 2);
  absl::MutexLock lock(&mu_);
  std::erase(damaged_, newest);
  std::vector<int64_t> steps = StepsToRemove(present, newest, keep, apart, damaged_);
  if (request.purpose.went_back) {
    std::copy_if(present.begin(), present.end(), std::back_inserter(steps),
                 [&](int64_t step) { return step > newest; });
  }
  std::vector<std::string> uris;
  for (const int64_t step : steps) {
    if (uris.size() == kMostRemovals) break;
    const std::string uri = absl::StrCat(identity_.root, "/", StepFolder(step));
    const auto same = [&](const Removal& removal) { return removal.uri == uri; };
    if (std::none_of(removals_.begin(), removals_.end(), same)) uris.push_back(uri);
  }
  return uris;
}

void CheckpointWriter::RemoveSettled(absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  for (;;) {
    if (!listener_.MayWrite()) return;
    const int64_t settled = listener_.SettledReport();
    std::vector<std::string> uris;
    bool waiting = false;
    {
      absl::MutexLock lock(&mu_);
      const auto is_settled = [&](const Removal& removal) { return removal.report <= settled; };
      for (const Removal& removal : removals_) {
        if (is_settled(removal)) uris.push_back(removal.uri);
      }
      std::erase_if(removals_, is_settled);
      waiting = !removals_.empty();
    }
    // One that cannot be removed now is chosen again after the next checkpoint.
    for (const std::string& uri : uris) store_.Delete(uri).IgnoreError();
    if (!waiting || absl::Now() >= deadline) return;
    absl::SleepFor(absl::Milliseconds(2));
  }
}

}  // namespace trainyard::engine
