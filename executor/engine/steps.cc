#include "executor/engine/steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/engine/fault.h"
#include "executor/engine/policies.h"
#include "executor/engine/step_parts.h"
#include "executor/plan/cost/cost.h"
#include "executor/plan/spec/learning_rate.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// What ranks ask each other for before a step, beside what kept_state.h has.
constexpr uint8_t kReportRanks = 2;

// So often at most the ranks tell what they measured: it costs as little however short a step is.
constexpr absl::Duration kRanksEvery = absl::Milliseconds(500);

// FLOPs of a step, without what is computed a second time to save memory.
double ModelFlops(const plan::Plan& plan) {
  double flops = plan.summary.flops_per_step();
  for (const v1::PassSummary& pass : plan.summary.passes()) {
    flops -= std::max(0.0, pass.added_flops());
  }
  return flops;
}

kernels::DType ComputeTypeOf(const v1::JobSpec& spec) {
  switch (spec.precision().compute()) {
    case v1::Precision::BF16:
      return kernels::DType::kBF16;
    case v1::Precision::FP16:
      return kernels::DType::kF16;
    default:
      return kernels::DType::kF32;
  }
}

// The ranks may still reach each other; the server counts one of them as lost all the same.
absl::Status BrokenGang() {
  return WithFault(Fault::kGang,
                   absl::CancelledError("the server counts another rank of the gang as lost"));
}

}  // namespace

data::Loader::Options LoaderOptions(kernels::Device& device, const v1::JobSpec& spec,
                                    const plan::Plan& plan, const Gang& gang, int64_t threads,
                                    int64_t steps_done, const std::vector<data::Skip>& skips) {
  const int64_t share = plan.micro_batch * plan.micro_batches;  // of a logical rank
  std::vector<int64_t> first_samples;                           // of micro-batches
  for (const int64_t logical : HostedRanks(plan, gang.size(), gang.rank())) {
    for (int64_t i = 0; i < plan.micro_batches; ++i) {
      first_samples.push_back(logical * share + i * plan.micro_batch);
    }
  }
  return {.seed = spec.training().seed(),
          .batch_size = spec.training().batch_size(),
          .samples = static_cast<int64_t>(first_samples.size()) * plan.micro_batch,
          .first_samples = std::move(first_samples),
          .micro_batch = plan.micro_batch,
          .first_step = steps_done,
          .prefetch = spec.data().prefetch(),
          .threads = threads,
          .skips = skips,
          .in_use = BatchesInUse(device),
          .allocate = [&device](size_t bytes) { return device.AllocateHost(bytes); }};
}

Steps::Steps(const Parts& parts, RunState run) : p_(parts), run_(std::move(run)) {
  if (!p_.from_memory || p_.from_memory->empty()) return;
  metrics_ = *p_.from_memory;
  evaluated_step_ = done();
}

std::string Steps::StoppedEarly() const {
  const v1::Evaluation& evaluation = p_.spec.evaluation();
  if (!evaluation.has_early_stopping()) return "";
  return StopsEarly(evaluation.early_stopping(), run_.early_stopping);
}

bool Steps::EvaluatesAfter(int64_t step) const {
  const EvaluationTimes& times = p_.evaluation;
  return (times.every > 0 && step % times.every == 0) ||
         (times.at_end && step == p_.plan.total_steps);
}

bool Steps::SavesAfter(int64_t step) const {
  // Where it went on from memory no checkpoint holds that state: one is written beside training.
  if (p_.from_memory && step == first_step_) return true;
  const int64_t every = p_.spec.checkpoint().every_steps();
  return every > 0 && step % every == 0;
}

bool Steps::TriesAfter(int64_t step) const {
  const EvaluationTimes& times = p_.evaluation;
  return step == first_step_ && (times.every > 0 || times.at_end) && !EvaluatesAfter(step);
}

absl::StatusOr<RunResult> Steps::Run(const std::atomic<bool>& stop) {
  const int64_t restored = done();
  first_step_ = restored + 1;
  TY_RETURN_IF_ERROR(Warn());
  // An evaluation that failed before this checkpoint was written is made before anything else.
  bool evaluates_first = std::exchange(run_.unevaluated, false);
  evaluation_due_ = evaluates_first;
  // A gang that broke after its last step has left it in memory, and nothing else is missing.
  bool saves_first = p_.from_memory && Over() && !evaluates_first;
  while (evaluates_first || saves_first || !Over()) {
    const bool again = std::exchange(evaluates_first, false);
    const bool only_saves = std::exchange(saves_first, false);
    if (!again && !only_saves) {
      if (const auto room = stop ? Room() : std::nullopt; room && room->alone) return BrokenGang();
      TY_ASSIGN_OR_RETURN(wishes_, p_.gang.AnyOf(Wishes(stop)));
      if ((wishes_ & kAskedToKeep) != 0) keep_asked_ = std::min(keep_asked_, absl::Now());
      stopping_ = (wishes_ & kStop) != 0;
      // It may have been told so while it waited for the others, which do not know of it.
      if (const auto room = stopping_ ? Room() : std::nullopt; room && room->alone) {
        return BrokenGang();
      }
      reports_ranks_ = (wishes_ & kReportRanks) != 0;
      if (stopping_ && p_.trainer.on_their_way() == 0) {
        const bool nothing_new = done() == restored && !p_.from_memory;
        const absl::StatusOr<RunResult> suspended = Suspend(nothing_new);
        // If the checkpoint is refused because the model is not finite, the run goes on as if
        // nobody had asked it to stop: the next steps are not finite either, and what becomes of
        // that must not depend on where a run is stopped.
        if (suspended.ok() || FaultOf(suspended.status()) != Fault::kNumeric) return suspended;
      }
      TY_RETURN_IF_ERROR(TrainOnce());
      if (TriesAfter(done())) TY_RETURN_IF_ERROR(TryEvaluation());
    }
    bool best = false;
    if (again || (!only_saves && EvaluatesAfter(done()))) {
      TY_ASSIGN_OR_RETURN(best, EvaluateAndKeepWeights());
      evaluation_due_ = false;
    }
    TY_RETURN_IF_ERROR(Warn());
    // The checkpoint follows the metrics of its step: whoever restores from it has them already.
    const bool last = Over();
    if (last || best || again || SavesAfter(done())) {
      TY_RETURN_IF_ERROR(Save({.needed = last, .final = last, .last = last}));
    }
  }
  TY_RETURN_IF_ERROR(CountSkipped());
  const absl::Status saved = AwaitSaved();
  if (FaultOf(saved) == Fault::kNumeric && RollsBack()) {
    return RollBack(std::string(saved.message()));
  }
  TY_RETURN_IF_ERROR(saved);
  return RunResult{.step = done(),
                   .reason = done() < p_.plan.total_steps ? StoppedEarly() : std::string()};
}

// An asynchronous device is given the next step before the result of this one is there, so that it
// never waits for the host.
absl::StatusOr<StepResult> Steps::NextResult() {
  const BatchSource next = [&] { return p_.loader.Next(); };
  TY_RETURN_IF_ERROR(std::exchange(failed_ahead_, absl::OkStatus()));
  if (p_.trainer.on_their_way() == 0) TY_RETURN_IF_ERROR(p_.trainer.Enqueue(next));
  if (p_.trainer.CanGoAhead() && NextStepFollowsAtOnce(done() + 1)) {
    failed_ahead_ = p_.trainer.EnqueueAhead(next);
  }
  return p_.trainer.Finish();
}

bool Steps::NextStepFollowsAtOnce(int64_t step) const {
  return !stopping_ && step < p_.plan.total_steps && !EvaluatesAfter(step) && !TriesAfter(step) &&
         !SavesAfter(step);
}

absl::Status Steps::TrainOnce() {
  const auto now = [&] {
    return Begun{.at = absl::Now(), .waited = p_.loader.waited(), .for_ranks = p_.trainer.waited()};
  };
  if (!p_.trainer.busy()) begun_ = now();
  TY_ASSIGN_OR_RETURN(const StepResult result, NextResult());
  // At once, while all ranks are here: rank 0 may have to wait for a store before it saves.
  const absl::Status gathered =
      NextStepFollowsAtOnce(done()) ? absl::OkStatus() : p_.trainer.AwaitParameters();
  const Begun ended = now();
  const Begun begun = std::exchange(begun_, ended);  // of the next step, if that is enqueued
  if (!result.finite && !result.skipped) return NotFinite(result);
  evaluation_due_ = EvaluatesAfter(done());
  if (!p_.gang.alone()) times_.Add(ended.at - begun.at, ended.for_ranks - begun.for_ranks);
  if (!ReportsAfter(done())) return gathered;
  std::map<std::string, double> values;
  if (p_.gang.leads() || p_.spec.parallel().second_owner()) {
    values = Measure(result, ended.at - begun.at, ended.waited - begun.waited);
    Remember(RunObserver::Split::kTrain, values);
  }
  TY_RETURN_IF_ERROR(gathered);
  if (reports_ranks_) {
    TY_ASSIGN_OR_RETURN(const auto of_ranks, ReportRanks());
    values.insert(of_ranks.begin(), of_ranks.end());
  }
  return Tell(RunObserver::Split::kTrain, values);
}

bool Steps::ReportsAfter(int64_t step) const {
  return step == 1 || step == p_.plan.total_steps || step % p_.spec.training().log_every() == 0;
}

uint8_t Steps::Wishes(bool stop) const {
  const int64_t next = done() + 1;
  const bool due = next == first_step_ || next == p_.plan.total_steps ||
                   absl::Now() - ranks_reported_ >= kRanksEvery;
  const bool ranks = !p_.gang.alone() && p_.gang.leads() && due && ReportsAfter(next);
  const bool impatient = absl::Now() - keep_asked_ > p_.keep_patience;
  return (ranks ? kReportRanks : 0) |
         WishToLeave(p_.gang.leads(), stop, stop ? Room() : std::nullopt, wishes_, impatient);
}

std::optional<RoomForState> Steps::Room() const {
  return p_.room_for_state == nullptr || keep_failed_ ? std::nullopt : p_.room_for_state();
}

absl::StatusOr<std::map<std::string, double>> Steps::ReportRanks() {
  ranks_reported_ = absl::Now();
  const int64_t steps = times_.steps();
  RankTimes mine = times_.Take();
  mine.memory_bytes = static_cast<double>(p_.device.PeakMemoryBytes());
  mine.planned_bytes = static_cast<double>(p_.plan.summary.bytes_per_slot());
  mine.work = plan::OwnShare(p_.plan);
  std::vector<RankTimes> all(p_.gang.leads() ? p_.gang.size() : 0);
  TY_RETURN_IF_ERROR(
      p_.gang.ToLeader(Sent(absl::MakeSpan(&mine, 1)), Received(absl::MakeSpan(all))));
  // An asynchronous device computes and waits for others unseen.
  const RankShares shares = {.logical_ranks = p_.plan.logical_ranks,
                             .sharing = static_cast<int>(p_.plan.host.ranks)};
  const bool looks = p_.gang.leads() && !p_.device.Asynchronous();
  const std::string straggler = looks ? stragglers_.Look(steps, all, shares) : "";
  if (!straggler.empty()) {
    TY_RETURN_IF_ERROR(WithStorageFault(p_.observer.OnWarning(straggler)));
  }
  return RankMetrics(all, shares);
}

std::map<std::string, double> Steps::Measure(const StepResult& result, absl::Duration took,
                                             absl::Duration waited) const {
  const double seconds = absl::ToDoubleSeconds(took);
  const double samples = static_cast<double>(p_.spec.training().batch_size());
  std::map<std::string, double> values = {{"loss", result.loss},
                                          {"learning_rate", result.learning_rate},
                                          {"grad_norm", result.grad_norm},
                                          {"step_ms", seconds * 1e3},
                                          {"data_wait_ms", absl::ToDoubleMilliseconds(waited)},
                                          {"samples_per_second", samples / seconds}};
  const double flops = ModelFlops(p_.plan) / seconds;
  const double peak = p_.device.PeakFlops(ComputeTypeOf(p_.spec)) * p_.gang.size();
  if (flops > 0) values["flops_per_second"] = flops;
  if (flops > 0 && peak > 0) values["mfu"] = flops / peak;
  if (const int64_t bytes = p_.device.PeakMemoryBytes(); bytes > 0) {
    values["peak_memory_bytes"] = static_cast<double>(bytes);
  }
  if (p_.plan.z_loss_sum != plan::kNone) values["z_loss"] = result.z_loss;
  if (const std::optional<LossScale>& scale = p_.trainer.loss_scale()) {
    values["loss_scale"] = scale->scale;
    values["skipped_steps"] = static_cast<double>(scale->skipped);
  }
  if (p_.plan.tokens) {
    values["tokens_per_second"] = samples * static_cast<double>(p_.plan.rows_per_sample) / seconds;
  }
  return values;
}

absl::Status Steps::Tell(RunObserver::Split split, const std::map<std::string, double>& values) {
  if (!p_.gang.leads()) return absl::OkStatus();
  TY_RETURN_IF_ERROR(WithStorageFault(p_.observer.OnMetrics(done(), split, values)));
  measured_.clear();
  return absl::OkStatus();
}

absl::Status Steps::Warn() {
  for (const std::string& warning : p_.dataset.TakeWarnings()) {
    TY_RETURN_IF_ERROR(WithStorageFault(p_.observer.OnWarning(warning)));
  }
  return absl::OkStatus();
}

absl::Status Steps::CountSkipped() {
  const int64_t n = p_.dataset.skipped();
  if (n == 0) return absl::OkStatus();
  return WithStorageFault(p_.observer.OnWarning(
      absl::StrCat("this attempt skipped ", n, n == 1 ? " image" : " different images")));
}

template <typename Policy>
absl::StatusOr<Score> Steps::ScoreOf(const Policy& policy, const std::string& field,
                                     const std::map<std::string, double>& values) const {
  const auto value = values.find(policy.metric());
  if (value != values.end()) return Score{.step = done(), .value = value->second};
  // The metric is also missing when the model's scores are NaN: that is no failure, but no
  // improvement.
  if (!std::isfinite(values.at("loss"))) return Score{.step = done(), .value = NAN};
  return WithFault(
      Fault::kData,
      absl::FailedPreconditionError(absl::StrCat(
          field, ".metric: ", policy.metric(), " is not defined on the held-out samples ",
          "that are evaluated", policy.metric() == "auc" ? ": all are of one class" : "",
          "; raise spec.evaluation.max_samples, or go by another metric")));
}

absl::StatusOr<bool> Steps::Evaluate() {
  TY_ASSIGN_OR_RETURN(auto values, p_.evaluator.Run(p_.spec.evaluation().max_samples()));
  if (p_.spec.training().has_ema_decay()) {
    values["ema_decay"] = plan::EmaDecay(p_.spec.training(), done() - 1);
  }
  metrics_.clear();
  for (const auto& [name, value] : values) {
    if (std::isfinite(value)) metrics_[name] = value;
  }
  evaluated_step_ = done();
  // Both scores first: an evaluation that fails leaves the policies as they were.
  std::optional<Score> to_stop, of_best;
  if (p_.spec.evaluation().has_early_stopping()) {
    TY_ASSIGN_OR_RETURN(to_stop, ScoreOf(p_.spec.evaluation().early_stopping(),
                                         "spec.evaluation.early_stopping", values));
  }
  if (p_.spec.checkpoint().has_best()) {
    TY_ASSIGN_OR_RETURN(of_best,
                        ScoreOf(p_.spec.checkpoint().best(), "spec.checkpoint.best", values));
  }
  bool best = false;
  if (of_best) TY_RETURN_IF_ERROR(RevertUnwrittenBest());
  if (to_stop) TakeValue(p_.spec.evaluation().early_stopping(), *to_stop, run_.early_stopping);
  if (of_best) {
    std::vector<Score> before = run_.best;
    best = EnterBest(p_.spec.checkpoint().best(), *of_best, run_.best);
    if (best) entered_ = {.step = done(), .before = std::move(before)};
  }
  Remember(RunObserver::Split::kValidation, values);
  TY_RETURN_IF_ERROR(Tell(RunObserver::Split::kValidation, values));
  return best;
}

bool Steps::PoliciesNeedEvaluation() const {
  return p_.spec.evaluation().has_early_stopping() || p_.spec.checkpoint().has_best();
}

absl::Status Steps::TryEvaluation() {
  const absl::Status tried = p_.evaluator.Try(p_.spec.evaluation().max_samples());
  return tried.ok() ? tried : Annotate(tried, "held-out data, tried after the first step");
}

absl::StatusOr<bool> Steps::EvaluateAndKeepWeights() {
  absl::StatusOr<bool> best = Evaluate();
  if (best.ok()) return best;
  const Fault fault = FaultOf(best.status());
  // A device that failed has no weights that can be trusted, and a store that failed takes none.
  if (fault == Fault::kDevice || fault == Fault::kStorage) return best;
  // The state stays in memory, and is evaluated then (LeaveAfterLoss).
  if (fault == Fault::kGang && p_.spec.parallel().second_owner()) {
    evaluated_step_ = -1;
    return best;
  }
  if (NothingCounts(best.status()) && !PoliciesNeedEvaluation()) {
    if (!p_.gang.leads()) return false;
    TY_RETURN_IF_ERROR(WithStorageFault(p_.observer.OnWarning(
        absl::StrCat("not evaluated after step ", done(), ": ", best.status().message()))));
    return false;
  }
  run_.unevaluated = true;
  evaluated_step_ = -1;  // what it measured was not reported
  const absl::Status saved = SaveNow({.needed = true, .last = true});
  const std::string kept =
      saved.ok()
          ? absl::StrCat("the weights of step ", done(),
                         " are kept: once what is wrong is mended, resume the job to evaluate them")
          : absl::StrCat("and its weights could not be written: ", saved.message());
  return WithFault(
      fault, absl::Status(best.status().code(), absl::StrCat("evaluation after step ", done(), ": ",
                                                             best.status().message(), "; ", kept)));
}

// Rank 0 alone knows what was written, and all ranks must agree on what is the best.
absl::Status Steps::RevertUnwrittenBest() {
  // This step's checkpoint is yet to be written.
  if (!entered_ || entered_->step == done()) return absl::OkStatus();
  const bool failed_here = p_.gang.leads() && p_.checkpoints.Failed(entered_->step);
  TY_ASSIGN_OR_RETURN(const int64_t failed, p_.gang.OfLeader(int64_t{failed_here}));
  if (failed != 0) run_.best = std::move(entered_->before);
  entered_.reset();
  return absl::OkStatus();
}

// What the ranks share out is read from all of them: while it is copied or, where it is lent, until
// it is written.
absl::Status Steps::Save(const CheckpointWriter::Purpose& purpose) {
  TY_RETURN_IF_ERROR(p_.trainer.AwaitParameters());  // of a run that is stopped before a step
  TY_RETURN_IF_ERROR(RevertUnwrittenBest());
  if (!p_.gang.leads()) return p_.trainer.ServeState();
  return SaveAndServe(purpose);
}

CheckpointContent Steps::Content() const {
  CheckpointContent content{.step = done(), .run = run_};
  content.run.loss_scale = p_.trainer.loss_scale();
  if (evaluated_step_ == done()) content.metrics = metrics_;
  return content;
}

absl::Status Steps::SaveAndServe(const CheckpointWriter::Purpose& purpose) {
  const absl::Status saved =
      WithStorageFault(p_.checkpoints.Save(Content(), purpose, [&](Snapshot& snapshot) {
        return purpose.last ? p_.trainer.LendTo(snapshot) : p_.trainer.CopyTo(snapshot);
      }));
  if (purpose.last) p_.checkpoints.AwaitWritten();
  const absl::Status served = p_.trainer.ServeState();
  return saved.ok() ? served : saved;
}

absl::Status Steps::AwaitSaved() {
  return p_.gang.OfLeader(WithStorageFault(p_.checkpoints.Wait()));
}

absl::Status Steps::SaveNow(const CheckpointWriter::Purpose& purpose) {
  absl::Status saved = Save(purpose);
  if (saved.ok()) saved = WithStorageFault(p_.checkpoints.Wait());
  return p_.gang.OfLeader(saved);
}

// What was just restored, and the state before the first step, need no checkpoint of their own.
absl::StatusOr<RunResult> Steps::Suspend(bool nothing_new) {
  if (!nothing_new) {
    TY_ASSIGN_OR_RETURN(const bool kept, KeepState());
    if (kept) return RunResult{.suspended = true, .step = done(), .kept = true};
  }
  TY_RETURN_IF_ERROR(nothing_new ? AwaitSaved() : SaveNow({.needed = true, .last = true}));
  return RunResult{.suspended = true, .step = done()};
}

absl::StatusOr<bool> Steps::KeepState() {
  const std::optional<RoomForState> room = Room();
  TY_ASSIGN_OR_RETURN(const int64_t wished, p_.gang.OfLeader(int64_t{room.has_value()}));
  // Whether this step stays among the best is known only once its checkpoint is written.
  if (wished == 0 || (entered_ && entered_->step == done())) return false;
  TY_RETURN_IF_ERROR(p_.trainer.AwaitParameters());
  TY_RETURN_IF_ERROR(RevertUnwrittenBest());
  TY_ASSIGN_OR_RETURN(const Keeper keeper, FindKeeper(p_.gang, room));
  absl::Status left = absl::ResourceExhaustedError("no node that stays has memory for it");
  if (keeper.rank >= 0) {
    absl::Status packed;
    if (p_.gang.leads()) {
      packed = WithStorageFault(
          p_.checkpoints.Pack(Content(), room->fd, std::min(room->bytes, keeper.bytes),
                              [&](Snapshot& snapshot) { return p_.trainer.LendTo(snapshot); }));
    }
    const absl::Status served = p_.trainer.ServeState();
    // Rank 0 may wait for what this rank could not give.
    if (!p_.gang.leads() && !served.ok()) return served;
    left = LeaveState(p_.gang, room, keeper.rank, packed.ok() ? served : packed);
  }
  if (left.ok()) return true;
  if (FaultOf(left) == Fault::kGang) return left;
  keep_failed_ = true;
  if (!p_.gang.leads()) return false;
  TY_RETURN_IF_ERROR(WithStorageFault(p_.observer.OnNotice(absl::StrCat(
      "writes a checkpoint, since its state cannot be left in memory: ", left.message()))));
  return false;
}

}  // namespace trainyard::engine
