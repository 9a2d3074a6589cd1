#include "executor/engine/run.h"

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "executor/data/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/tokenizer.h"
#include "executor/engine/blame.h"
#include "executor/engine/checkpoint/config.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/evaluator.h"
#include "executor/engine/restore.h"
#include "executor/engine/session.h"
#include "executor/engine/trainer.h"
#include "executor/plan/spec.h"
#include "storage/base/status.h"
#include "storage/objects/object_store.h"

namespace trainyard::engine {
namespace {

// How long a run that is over waits for its last report to be known before it leaves old
// checkpoints behind; whoever runs the job next removes them.
constexpr absl::Duration kLastRemoval = absl::Milliseconds(500);

absl::Status BlameSpec(const absl::Status& status) {
  return Blame(absl::IsUnimplemented(status) ? Fault::kUnimplemented : Fault::kSpec, status);
}

absl::Status BlameStorage(const absl::Status& status) { return Blame(Fault::kStorage, status); }

CheckpointIdentity MakeIdentity(const RunRequest& request, const v1::JobSpec& spec,
                                const data::Dataset& dataset, const plan::Plan& plan) {
  return {.root = request.checkpoint_root,
          .tag = absl::StrCat("a", request.attempt),
          .config = ConfigToJson({.spec = spec, .facts = dataset.facts()}, plan),
          .tokenizer = dataset.tokenizer() == nullptr ? std::vector<data::NamedText>{}
                                                      : dataset.tokenizer()->Files(),
          .spec_digest = SpecDigest(spec),
          .seed = spec.training().seed(),
          .batch_size = spec.training().batch_size()};
}

// Whether and when to evaluate.
struct EvaluationTimes {
  int64_t every = 0;
  bool at_end = false;

  bool Due(int64_t step, int64_t total) const {
    return (every > 0 && step % every == 0) || (at_end && step == total);
  }
};

absl::StatusOr<EvaluationTimes> WhenToEvaluate(const v1::Evaluation& spec,
                                               const data::Dataset& dataset) {
  const bool has_split = dataset.size(data::Split::kValidation) > 0;
  const EvaluationTimes times{.every = spec.every_steps(),
                              .at_end = spec.has_at_end() ? spec.at_end() : has_split};
  if (!has_split && (times.every > 0 || times.at_end)) {
    return BlameSpec(absl::InvalidArgumentError(
        absl::StrCat("spec.evaluation.", times.every > 0 ? "every_steps" : "at_end",
                     ": the data has no held-out split")));
  }
  return times;
}

// Threads that prepare samples: all of the slot where that takes time.
int64_t LoaderThreads(const v1::JobSpec& spec, const data::Dataset& dataset, int threads) {
  if (spec.data().has_threads()) return spec.data().threads();
  return dataset.grain() > 0 ? threads : 1;
}

data::Loader::Options LoaderOptions(const v1::JobSpec& spec, const plan::Plan& plan,
                                    int64_t threads, int64_t first_step) {
  return {.seed = spec.training().seed(),
          .batch_size = spec.training().batch_size(),
          .first_sample = 0,
          .samples = spec.training().batch_size(),
          .micro_batch = plan.micro_batch,
          .first_step = first_step,
          .prefetch = spec.data().prefetch(),
          .threads = threads};
}

// The steps of a run whose parts are all in place.
class Steps {
 public:
  Steps(const v1::JobSpec& spec, const plan::Plan& plan, const data::Dataset& dataset,
        Trainer& trainer, Evaluator& evaluator, data::Loader& loader, CheckpointWriter& checkpoints,
        RunObserver& observer)
      : spec_(spec),
        plan_(plan),
        dataset_(dataset),
        trainer_(trainer),
        evaluator_(evaluator),
        loader_(loader),
        checkpoints_(checkpoints),
        observer_(observer) {}

  absl::StatusOr<RunResult> Run(const EvaluationTimes& evaluation, const std::atomic<bool>& stop) {
    const int64_t restored = trainer_.steps_done();
    TY_RETURN_IF_ERROR(Warn());
    while (trainer_.steps_done() < plan_.total_steps) {
      if (stop) return Suspend(trainer_.steps_done() == restored);
      TY_RETURN_IF_ERROR(TrainOnce());
      const int64_t step = trainer_.steps_done();
      if (evaluation.Due(step, plan_.total_steps)) TY_RETURN_IF_ERROR(Evaluate(step));
      TY_RETURN_IF_ERROR(Warn());
      // After the metrics of its step: whoever restores from it has them already.
      const int64_t every = spec_.checkpoint().every_steps();
      const bool last = step == plan_.total_steps;
      if (last || (every > 0 && step % every == 0)) TY_RETURN_IF_ERROR(Save(last, last));
    }
    TY_RETURN_IF_ERROR(CountSkipped());
    TY_RETURN_IF_ERROR(BlameStorage(checkpoints_.Wait()));
    return RunResult{.suspended = false, .step = trainer_.steps_done()};
  }

 private:
  absl::Status TrainOnce() {
    const absl::Time start = absl::Now();
    const absl::Duration waited = loader_.waited();
    TY_ASSIGN_OR_RETURN(const StepResult result, trainer_.Step([&] { return loader_.Next(); }));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    const int64_t step = trainer_.steps_done();
    const int64_t every = spec_.training().log_every();
    if (step != 1 && step != plan_.total_steps && step % every != 0) return absl::OkStatus();

    const double samples = static_cast<double>(spec_.training().batch_size());
    std::map<std::string, double> values = {{"loss", result.loss},
                                            {"learning_rate", result.learning_rate},
                                            {"grad_norm", result.grad_norm},
                                            {"step_ms", seconds * 1e3},
                                            {"data_wait_ms", WaitedSince(waited)},
                                            {"samples_per_second", samples / seconds}};
    if (plan_.tokens) {
      values["tokens_per_second"] = samples * static_cast<double>(plan_.rows_per_sample) / seconds;
    }
    return BlameStorage(observer_.OnMetrics(step, RunObserver::Split::kTrain, values));
  }

  // Milliseconds.
  double WaitedSince(absl::Duration before) const {
    return absl::ToDoubleMilliseconds(loader_.waited() - before);
  }

  // Passes on what was found in the data since the last call.
  absl::Status Warn() {
    for (const std::string& warning : dataset_.TakeWarnings()) {
      TY_RETURN_IF_ERROR(BlameStorage(observer_.OnWarning(warning)));
    }
    return absl::OkStatus();
  }

  absl::Status CountSkipped() {
    const int64_t n = dataset_.skipped();
    if (n == 0) return absl::OkStatus();
    return BlameStorage(observer_.OnWarning(
        absl::StrCat("this attempt skipped ", n, n == 1 ? " image" : " different images")));
  }

  absl::Status Evaluate(int64_t step) {
    TY_ASSIGN_OR_RETURN(auto values, evaluator_.Run(spec_.evaluation().max_samples()));
    if (spec_.training().has_ema_decay()) {
      values["ema_decay"] = plan::EmaDecay(spec_.training(), step - 1);
    }
    return BlameStorage(observer_.OnMetrics(step, RunObserver::Split::kValidation, values));
  }

  absl::Status Save(bool needed, bool final) {
    return BlameStorage(
        checkpoints_.Save(trainer_.steps_done(), needed, final,
                          [&](Snapshot& snapshot) { return trainer_.CopyTo(snapshot); }));
  }

  // What was just restored, and the state before the first step, need no checkpoint of their own.
  absl::StatusOr<RunResult> Suspend(bool nothing_new) {
    if (!nothing_new) TY_RETURN_IF_ERROR(Save(/*needed=*/true, /*final=*/false));
    TY_RETURN_IF_ERROR(BlameStorage(checkpoints_.Wait()));
    return RunResult{.suspended = true, .step = trainer_.steps_done()};
  }

  const v1::JobSpec& spec_;
  const plan::Plan& plan_;
  const data::Dataset& dataset_;
  Trainer& trainer_;
  Evaluator& evaluator_;
  data::Loader& loader_;
  CheckpointWriter& checkpoints_;
  RunObserver& observer_;
};

// Puts the parts in place and runs. Reading data begins before the kernels are prepared.
absl::StatusOr<RunResult> RunPlan(kernels::Device& device, const RunRequest& request,
                                  const v1::JobSpec& spec, const data::Dataset& dataset,
                                  const plan::Plan& plan, RunObserver& observer,
                                  const std::atomic<bool>& stop) {
  TY_ASSIGN_OR_RETURN(const EvaluationTimes evaluation, WhenToEvaluate(spec.evaluation(), dataset));
  TY_ASSIGN_OR_BLAME(Fault::kStorage, const std::unique_ptr<ObjectStore> store,
                     OpenObjectStore(request.checkpoint_root));
  TY_RETURN_IF_ERROR(BlameStorage(store->DeleteStaged(request.checkpoint_root)));
  std::optional<ChosenCheckpoint> chosen;
  if (request.restore) {
    TY_ASSIGN_OR_RETURN(chosen, ChooseCheckpoint(*store, *request.restore));
    TY_RETURN_IF_ERROR(CheckFits(chosen->checkpoint, spec, dataset));
  }
  const int64_t threads = LoaderThreads(spec, dataset, request.threads);
  data::Loader loader(dataset,
                      LoaderOptions(spec, plan, threads, chosen ? chosen->checkpoint.step : 0));

  TY_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Open(device, plan));
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(*session, spec));
  if (chosen) {
    TY_RETURN_IF_ERROR(BlameStorage(trainer->Restore(chosen->checkpoint)));
  } else {
    TY_RETURN_IF_ERROR(trainer->Initialize(request.threads));
  }
  TY_RETURN_IF_ERROR(BlameStorage(
      observer.OnRestored(trainer->steps_done(), chosen ? chosen->checkpoint.uri : std::string())));

  CheckpointWriter checkpoints(*store, MakeIdentity(request, spec, dataset, plan),
                               spec.checkpoint().keep(), plan, observer);
  if (chosen) {
    checkpoints.SetDamaged(chosen->damaged);
    for (const std::string& warning : chosen->warnings) {
      TY_RETURN_IF_ERROR(BlameStorage(observer.OnWarning(warning)));
    }
    chosen.reset();
  }
  Evaluator evaluator(*session, dataset, threads);
  Steps steps(spec, plan, dataset, *trainer, evaluator, loader, checkpoints, observer);
  TY_ASSIGN_OR_RETURN(const RunResult result, steps.Run(evaluation, stop));
  TY_RETURN_IF_ERROR(BlameStorage(observer.OnFinished(result)));
  checkpoints.RemoveSettled(kLastRemoval);
  return result;
}

}  // namespace

absl::StatusOr<RunResult> Run(kernels::Device& device, const RunRequest& request,
                              RunObserver& observer, const std::atomic<bool>& stop) {
  const absl::StatusOr<v1::JobSpec> spec = plan::ResolveSpec(request.spec);
  if (!spec.ok()) return BlameSpec(spec.status());
  if (spec->parallel().logical_ranks() != 1) {
    return Blame(Fault::kUnimplemented,
                 absl::UnimplementedError(
                     absl::StrCat("spec.parallel.logical_ranks: ", spec->parallel().logical_ranks(),
                                  ": training across ranks is not built yet; use 1")));
  }
  TY_ASSIGN_OR_BLAME(Fault::kData, const std::unique_ptr<data::Dataset> dataset,
                     data::OpenDataset(spec->data(), plan::WindowingOf(spec->model())));
  const absl::StatusOr<plan::Plan> plan = plan::BuildPlan(*spec, dataset->facts());
  if (!plan.ok()) return BlameSpec(plan.status());
  TY_RETURN_IF_ERROR(BlameStorage(observer.OnStarted(*spec, *plan)));
  return RunPlan(device, request, *spec, *dataset, *plan, observer, stop);
}

}  // namespace trainyard::engine
