// What a run does after a step that is not finite.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/retention.h"
#include "executor/engine/fault.h"
#include "executor/engine/load_weights.h"
#include "executor/engine/policies.h"
#include "executor/engine/steps.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kStart = -1;  // no step of a checkpoint

// What the first rank that found something found.
absl::StatusOr<std::string> FirstFound(const Gang& gang, const std::string& mine) {
  if (gang.alone()) return mine;
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> all, gang.Gather(mine));
  for (const std::string& found : all) {
    if (!found.empty()) return found;
  }
  return std::string();
}

}  // namespace

absl::Status Steps::NotFinite(const StepResult& result) {
  off_course_ = true;
  // Delivers the micro-batches of that step once more.
  data::Loader again(p_.dataset, LoaderOptions(p_.device, p_.spec, p_.plan, p_.data_gang,
                                               p_.loader_threads, done(), run_.skips));
  TY_ASSIGN_OR_RETURN(const std::string mine,
                      p_.trainer.FindNonFinite([&] { return again.Next(); }));
  TY_ASSIGN_OR_RETURN(const std::string found, FirstFound(p_.gang, mine));
  const std::string values =
      absl::StrCat(" (loss is ", result.loss, ", norm of the gradient ", result.grad_norm,
                   ", learning rate ", result.learning_rate, ")");
  if (found.empty()) {
    return MarkCommon(
        WithFault(Fault::kDevice,
                  absl::InternalError(absl::StrCat(
                      "step ", done() + 1, ": not finite", values,
                      ", but the same step made again is: the device or its memory is at fault"))));
  }
  const std::string what =
      absl::StrCat("step ", done() + 1, ": first non-finite value: ", found, values);
  if (RollsBack()) return RollBack(what);
  return MarkCommon(WithFault(
      Fault::kNumeric,
      absl::OutOfRangeError(absl::StrCat(
          what, "; a smaller learning rate, a longer warm-up or optimizer.clip_norm may help",
          p_.trainer.loss_scale() ? "; so may precision.compute BF16" : ""))));
}

absl::StatusOr<std::optional<Checkpoint>> Steps::RollbackTarget() {
  TY_RETURN_IF_ERROR(p_.checkpoints.Wait());
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> present, ListSteps(p_.store, p_.checkpoint_root));
  for (const int64_t step : RollbackTargets(present, done(), p_.spec, run_)) {
    absl::StatusOr<Checkpoint> found =
        Checkpoint::Open(p_.store, absl::StrCat(p_.checkpoint_root, "/", StepFolder(step)), "");
    if (found.ok()) return *std::move(found);
    if (!absl::IsDataLoss(found.status()) && !absl::IsNotFound(found.status())) {
      return found.status();
    }
  }
  return std::nullopt;
}

absl::Status Steps::RollBack(const std::string& what) {
  off_course_ = true;
  std::optional<Checkpoint> target;
  TY_RETURN_IF_ERROR(
      p_.gang.OfLeader(p_.gang.leads() ? FindTarget(what, target) : absl::OkStatus()));
  const int64_t failed = done();
  TY_ASSIGN_OR_RETURN(const int64_t step, p_.gang.OfLeader(target ? target->step : kStart));
  TY_RETURN_IF_ERROR(p_.gang.Agree(GoBackTo(step, target)));
  return p_.gang.OfLeader(p_.gang.leads() ? WriteAnew(what, target, failed)
                                          : p_.trainer.ServeState());
}

absl::Status Steps::FindTarget(const std::string& what, std::optional<Checkpoint>& target) {
  const int64_t most = p_.spec.training().max_rollbacks();
  if (run_.rollbacks >= most) {
    return WithFault(Fault::kNumeric, absl::OutOfRangeError(absl::StrCat(
                                          what, "; all ", most, " rollbacks are used up")));
  }
  TY_ASSIGN_OR_FAULT(Fault::kStorage, target, RollbackTarget());
  return absl::OkStatus();
}

absl::Status Steps::BeginAnew() {
  TY_RETURN_IF_ERROR(p_.trainer.Initialize());
  return p_.trainer.loaded() ? CheckSameStart(run_.start_sha256, *p_.trainer.loaded())
                             : absl::OkStatus();
}

absl::Status Steps::GoBackTo(int64_t step, std::optional<Checkpoint>& target) {
  entered_.reset();
  if (step == kStart) return BeginAnew();
  if (!target) {
    TY_ASSIGN_OR_FAULT(
        Fault::kStorage, target,
        Checkpoint::Open(p_.store, absl::StrCat(p_.checkpoint_root, "/", StepFolder(step)), ""));
  }
  return WithStorageFault(p_.trainer.Restore(*target));
}

absl::Status Steps::WriteAnew(const std::string& what, const std::optional<Checkpoint>& target,
                              int64_t failed) {
  if (target) {
    metrics_ = target->metrics;
    evaluated_step_ = done();
  }
  const int64_t next = data::BatchOfStep(done(), run_.skips);
  run_ = AfterRollback(run_, failed,
                       target ? target->run : RunState{.start_sha256 = run_.start_sha256}, done());
  TY_RETURN_IF_ERROR(SaveAndServe({.needed = true, .last = true, .went_back = true}));
  TY_RETURN_IF_ERROR(WithStorageFault(p_.checkpoints.Wait()));
  const int64_t left_out = data::BatchOfStep(done(), run_.skips) - next;
  return MarkRolledBack(WithFault(
      Fault::kNumeric, absl::OutOfRangeError(absl::StrCat(
                           what, "; back to step ", done(), ", leaving out the data of ", left_out,
                           left_out == 1 ? " step" : " steps", " (rollback ", run_.rollbacks,
                           " of ", p_.spec.training().max_rollbacks(), ")"))));
}

}  // namespace trainyard::engine
