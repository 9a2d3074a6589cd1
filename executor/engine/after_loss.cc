// What a rank does whose gang broke, if it has the whole state (Steps::LeaveAfterLoss).

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/kept_state.h"
#include "executor/engine/steps.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// A rank that could not tell more steps than the server has of rank 0 leaves nothing of use.
constexpr size_t kMostMeasured = 1024;

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(5);

// Where the state is to be left, once that is known; nothing if it is not within `patience`.
std::optional<RoomForState> AwaitRoom(const std::function<std::optional<RoomForState>()>& room,
                                      absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  for (;;) {
    const std::optional<RoomForState> told = room();
    if (told && told->alone && told->bytes > 0) return told;
    if (absl::Now() > deadline) return std::nullopt;
    absl::SleepFor(kBetweenLooks);
  }
}

}  // namespace

void Steps::Remember(RunObserver::Split split, const std::map<std::string, double>& values) {
  if (p_.gang.alone() || !p_.spec.parallel().second_owner()) return;
  if (measured_.size() == kMostMeasured) {
    forgotten_ = measured_.front().step;
    measured_.pop_front();
  }
  measured_.push_back({.step = done(), .split = split, .values = values});
}

bool Steps::BestIsWritten() const {
  if (!entered_) return true;
  const std::string uri = absl::StrCat(p_.checkpoint_root, "/", StepFolder(entered_->step));
  return Checkpoint::Open(p_.store, uri, "").ok();
}

std::string Steps::NothingToLeave() const {
  if (off_course_) return "a step was not finite";
  if (!p_.trainer.HasWholeState()) return "it was in the middle of an update";
  // Those that start from the state in memory would take it for written.
  if (!BestIsWritten()) {
    return absl::StrCat("the checkpoint of step ", entered_->step, ", one of the best, is missing");
  }
  return "";
}

void Steps::LeaveAfterLoss(const absl::Status& why) {
  // What this attempt began with is in a checkpoint, or still in memory (ResizeRecord::kept_step).
  if (p_.room_for_state == nullptr || done() < first_step_) return;
  const std::string nothing = NothingToLeave();
  const absl::Status left = nothing.empty() ? LeaveAlone(why) : absl::CancelledError(nothing);
  if (left.ok()) return;
  // The run fails for another reason, which is reported in any case.
  p_.observer
      .OnNotice(
          absl::StrCat("the state of step ", done(), " is not left in memory: ", left.message()))
      .IgnoreError();
}

absl::Status Steps::LeaveAlone(const absl::Status& why) {
  TY_RETURN_IF_ERROR(p_.observer.OnLeftAlone(why, forgotten_));
  const std::optional<RoomForState> room = AwaitRoom(p_.room_for_state, p_.loss_patience);
  if (!room) {
    return absl::DeadlineExceededError(
        absl::StrCat("nobody asked for it within ", absl::FormatDuration(p_.loss_patience)));
  }
  CheckpointContent content = Content();
  content.run.unevaluated = evaluation_due_;
  Snapshot snapshot(p_.plan, p_.spec.model());
  TY_RETURN_IF_ERROR(p_.trainer.LendTo(snapshot));
  // A checkpoint may be on its way to a slow store.
  TY_RETURN_IF_ERROR(p_.checkpoints.PackBeside(content, room->fd, room->bytes, snapshot));
  for (const Measured& point : measured_) {
    TY_RETURN_IF_ERROR(p_.observer.OnMetrics(point.step, point.split, point.values));
  }
  return p_.observer.OnFinished({.suspended = true, .step = done(), .kept = true});
}

}  // namespace trainyard::engine
