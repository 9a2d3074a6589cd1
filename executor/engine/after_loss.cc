// What a rank does whose gang broke, if it has the whole state, or its share of it
// (Steps::LeaveAfterLoss).

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/kept_state.h"
#include "executor/engine/steps.h"
#include "executor/engine/survivors.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// A rank that could not tell more steps than the server has of rank 0 leaves nothing of use.
constexpr size_t kMostMeasured = 1024;

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(5);

// How long a rank waits for the list of survivors once it was asked for its share. The server knows
// that a node is lost only when its lease ends, and its agent ends the rank if that takes too long.
constexpr absl::Duration kPatienceForOthers = absl::Minutes(10);

// How long survivors try to meet. At first they may have been told of different ones.
constexpr absl::Duration kPatienceToMeet = absl::Seconds(15);

// Waits until this rank is asked for its state or, with `together`, until it also knows the
// survivors, with whom it is to leave it. Why it has waited in vain, if it has.
absl::StatusOr<RoomForState> AwaitRoom(const std::function<std::optional<RoomForState>()>& room,
                                       bool together, absl::Duration patience) {
  absl::Time deadline = absl::Now() + patience;
  bool asked = false;
  for (;;) {
    const std::optional<RoomForState> told = room();
    const bool known = told && told->alone;
    if (known && (together ? !told->survivors.empty() : told->bytes > 0)) return *told;
    if (known && together && !std::exchange(asked, true)) {
      deadline = absl::Now() + kPatienceForOthers;
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          asked ? "it was not told which other ranks are left"
                : absl::StrCat("nobody asked for it within ", absl::FormatDuration(patience)));
    }
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
  if (!p_.trainer.HasItsState()) return "it was in the middle of an update";
  // Those that start from the state in memory would take it for written.
  if (!BestIsWritten()) {
    return absl::StrCat("the checkpoint of step ", entered_->step, ", one of the best, is missing");
  }
  return "";
}

void Steps::LeaveAfterLoss(const absl::Status& why) {
  broke_ = absl::Now();
  // What this attempt began with is in a checkpoint, or still in memory (ResizeRecord::kept_step).
  const int64_t reached = done() + (p_.trainer.CanFinishStep() ? 1 : 0);
  if (p_.room_for_state == nullptr || reached < first_step_) return;
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
  const bool alone = plan::SlicesFor(p_.plan.data_ranks, p_.plan.owners) == 1;  // it has all shares
  TY_ASSIGN_OR_RETURN(RoomForState room,
                      AwaitRoom(p_.room_for_state, p_.plan.sharded && !alone, p_.loss_patience));
  if (p_.plan.sharded) {
    if (alone) room.survivors = {p_.gang.rank()};
    TY_ASSIGN_OR_RETURN(const bool left, LeaveTogether(std::move(room)));
    if (!left) return absl::OkStatus();
  } else {
    TY_RETURN_IF_ERROR(PackInto(room));
  }
  for (const Measured& point : measured_) {
    TY_RETURN_IF_ERROR(p_.observer.OnMetrics(point.step, point.split, point.values));
  }
  return p_.observer.OnFinished({.suspended = true, .step = done(), .kept = true});
}

absl::Status Steps::PackInto(const RoomForState& room) {
  CheckpointContent content = Content();
  content.run.unevaluated = evaluation_due_;
  Snapshot snapshot(p_.plan, p_.spec.model());
  TY_RETURN_IF_ERROR(p_.trainer.LendTo(snapshot));
  // A checkpoint may be on its way to a slow store.
  return p_.checkpoints.PackBeside(content, room.fd, room.bytes, snapshot);
}

absl::StatusOr<Steps::Met> Steps::MeetSurvivors(RoomForState& room) {
  const absl::Time deadline = absl::Now() + kPatienceToMeet;
  const auto meet = [&]() -> absl::StatusOr<Met> {
    Met met;
    TY_RETURN_IF_ERROR(CheckSurvivors(room.survivors, p_.gang.rank(), p_.gang.size()));
    if (room.survivors.size() > 1) {
      if (p_.meet_survivors == nullptr) return absl::UnimplementedError("they cannot meet");
      TY_ASSIGN_OR_RETURN(met.links, p_.meet_survivors(room.survivors));
    }
    const Remains mine = {
        .steps = done(), .can_finish = p_.trainer.CanFinishStep() ? 1 : 0, .room = room.bytes};
    TY_ASSIGN_OR_RETURN(met.remains, GatherRemains(Gang(met.links.get()), mine));
    return met;
  };
  for (;;) {
    absl::StatusOr<Met> met = meet();
    if (met.ok() || absl::Now() > deadline) return met;
    // One of them may be gone by now, or was told of others.
    absl::SleepFor(kBetweenLooks);
    const std::optional<RoomForState> told = p_.room_for_state();
    if (told && told->alone && !told->survivors.empty()) room = *told;
  }
}

absl::StatusOr<bool> Steps::LeaveTogether(RoomForState room) {
  TY_ASSIGN_OR_RETURN(const Met met, MeetSurvivors(room));
  TY_ASSIGN_OR_RETURN(const Salvage salvage, ChooseSalvage(met.remains));
  // The one that leaves it reads from the others, and so comes first.
  std::vector<int> order = {salvage.rank};
  for (int rank = 0; rank < static_cast<int>(met.remains.size()); ++rank) {
    if (rank != salvage.rank) order.push_back(rank);
  }
  std::vector<int64_t> of_gang;
  for (const int rank : order) of_gang.push_back(room.survivors[rank]);
  std::optional<PartOfCommunicator> ordered;
  if (met.links != nullptr) ordered.emplace(*met.links, order);
  const Gang left(ordered ? &*ordered : nullptr);
  TY_ASSIGN_OR_RETURN(const std::optional<StepResult> finished,
                      p_.trainer.GoOnAmong(left, of_gang, salvage.step));
  if (finished && (finished->finite || finished->skipped)) {
    evaluation_due_ = EvaluatesAfter(done());
    if (ReportsAfter(done())) {
      measured_.push_back(
          {.step = done(),
           .split = RunObserver::Split::kTrain,
           .values = Measure(*finished, broke_ - begun_.at, p_.loader.waited() - begun_.waited)});
    }
  }
  if (done() < first_step_) return absl::CancelledError("this attempt has made no step");
  const absl::Status packed = left.leads() ? PackInto(room) : absl::OkStatus();
  const absl::Status served = p_.trainer.ServeState();
  TY_RETURN_IF_ERROR(left.leads() ? packed : served);
  return left.leads();
}

}  // namespace trainyard::engine
