#include "executor/engine/run.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/engine/arithmetic.h"
#include "executor/engine/checkpoint/adapter.h"
#include "executor/engine/checkpoint/config.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/evaluator.h"
#include "executor/engine/fault.h"
#include "executor/engine/groups.h"
#include "executor/engine/link_check.h"
#include "executor/engine/load_weights.h"
#include "executor/engine/parallel/nccl_communicator.h"
#include "executor/engine/restore.h"
#include "executor/engine/session.h"
#include "executor/engine/steps.h"
#include "executor/engine/trainer.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"
#include "storage/objects/object_store.h"

namespace trainyard::engine {
namespace {

// How long a run that is over waits for its last report to be settled, to remove old checkpoints.
// Those that it leaves behind are removed by whoever runs the job next.
constexpr absl::Duration kLastRemoval = absl::Milliseconds(500);

// How long the GPUs of a gang may take to be linked: the libraries of hundreds of ranks start.
constexpr absl::Duration kLinking = absl::Minutes(2);

absl::Status WithSpecFault(const absl::Status& status) {
  return WithFault(absl::IsUnimplemented(status) ? Fault::kUnimplemented : Fault::kSpec, status);
}

CheckpointIdentity MakeIdentity(const RunRequest& request, const v1::JobSpec& spec,
                                const data::Dataset& dataset, const plan::Plan& plan,
                                const Arithmetic& arithmetic) {
  return {.root = request.checkpoint_root,
          .tag = absl::StrCat("a", request.attempt),
          .config = ConfigToJson({.spec = spec, .facts = dataset.facts()}, plan),
          .adapter_config = plan.adapters.empty() ? "" : AdapterConfigToJson(spec, plan),
          .tokenizer = dataset.tokenizer() == nullptr ? std::vector<data::NamedText>{}
                                                      : dataset.tokenizer()->Files(),
          .spec_digest = SpecDigest(spec),
          .spec = spec,
          .arithmetic = arithmetic};
}

absl::StatusOr<EvaluationTimes> WhenToEvaluate(const v1::Evaluation& spec,
                                               const data::Dataset& dataset) {
  const bool has_split = dataset.size(data::Split::kValidation) > 0;
  const EvaluationTimes times{.every = spec.every_steps(),
                              .at_end = spec.has_at_end() ? spec.at_end() : has_split};
  if (!has_split && (times.every > 0 || times.at_end)) {
    return WithSpecFault(absl::InvalidArgumentError(
        absl::StrCat("spec.evaluation.", times.every > 0 ? "every_steps" : "at_end",
                     ": the data has no held-out split")));
  }
  return times;
}

// Threads that prepare samples: all of the slot's if that takes time, else one.
int64_t LoaderThreads(const v1::JobSpec& spec, const data::Dataset& dataset, int threads) {
  if (spec.data().has_threads()) return spec.data().threads();
  return dataset.grain() > 0 ? threads : 1;
}

// Whether so many ranks can train the job.
absl::Status CheckCanTrain(const Gang& gang, const v1::JobSpec& spec) {
  const int64_t logical_ranks = spec.parallel().logical_ranks();
  const int64_t sharing = plan::RanksInGroup(spec.parallel());
  if (gang.size() % sharing != 0) {
    const char* const at = spec.parallel().layout().pipeline() > 1 ? "" : ".tensor";
    return WithSpecFault(absl::InvalidArgumentError(
        absl::StrCat("spec.parallel.layout", at, ": ", sharing, " ranks share a logical rank, and ",
                     gang.size(), gang.size() == 1 ? " rank is" : " ranks are",
                     " no multiple of it; run a multiple, or leave it out")));
  }
  if (gang.size() / sharing > logical_ranks) {
    return WithSpecFault(absl::InvalidArgumentError(
        absl::StrCat("spec.parallel.logical_ranks: ", logical_ranks, " cannot be shared by ",
                     gang.size(), " ranks; use ", gang.size() / sharing, ", or at most ",
                     logical_ranks * sharing, " ranks")));
  }
  return absl::OkStatus();
}

// Checks that the ranks of the gang train the same model on the same data from the same checkpoint.
absl::Status CheckSameStart(const Gang& gang, const v1::JobSpec& spec, const plan::Plan& plan,
                            const data::Dataset& dataset,
                            const std::optional<ChosenCheckpoint>& chosen) {
  if (gang.alone()) return absl::OkStatus();
  const std::string shard = v1::Parallel::Shard_Name(spec.parallel().shard());
  TY_RETURN_IF_ERROR(gang.CheckSame(
      "the spec",
      absl::StrCat(SpecDigest(spec), " ", shard, " ", spec.parallel().layout().tensor(), " ",
                   spec.parallel().layout().pipeline(),
                   spec.parallel().layout().sequence() ? " sequence" : "",
                   spec.parallel().layout().chunks() > 1
                       ? absl::StrCat(" chunks ", spec.parallel().layout().chunks())
                       : "",
                   spec.parallel().check_links() ? " check_links" : "",
                   // Workers of before share out the optimizer's state.
                   spec.parallel().second_owner() ? " second_owner" : "",
                   // Workers of before sweep the tables all the same, and would send other sums.
                   spec.optimizer().muon().adamw().lazy_tables() ? " lazy_tables" : "",
                   // Or each have all of the tables.
                   plan.tables.empty() ? "" : " tables in shares"),
      Fault::kInternal));
  TY_RETURN_IF_ERROR(gang.CheckSame(
      "the data",
      absl::StrCat(dataset.size(data::Split::kTrain), " samples to train on and ",
                   dataset.size(data::Split::kValidation), " held out, ",
                   dataset.facts().classes + dataset.facts().vocab, " classes or tokens"),
      Fault::kData));
  return gang.CheckSame(
      "the checkpoint to go on from",
      chosen ? absl::StrCat(chosen->checkpoint.manifest_sha256, " of ", chosen->checkpoint.uri)
             : std::string("none"),
      Fault::kStorage);
}

// Lets the other ranks fail for what they cannot know by themselves.
void FailGang(const Gang& gang, const absl::Status& status) {
  if (!RolledBack(status) && !IsCommon(status)) gang.Fail(status);
}

// Links the GPUs of a gang; null: its ranks exchange through their hosts.
absl::StatusOr<std::unique_ptr<NcclCommunicator>> LinkGpus(kernels::Device& device,
                                                           const Gang& gang, const plan::Plan& plan,
                                                           const v1::Parallel& parallel) {
  if (gang.alone() || !device.IsGpu()) return nullptr;
  if (plan.parameters_sharded) {
    return WithSpecFault(
        absl::UnimplementedError("spec.parallel.shard: PARAMETERS is not built yet for GPUs; run "
                                 "it on CPUs, or use shard GRADIENTS"));
  }
  std::optional<absl::Duration> progress_timeout;
  if (parallel.has_progress_timeout_seconds()) {
    progress_timeout = absl::Seconds(parallel.progress_timeout_seconds());
  }
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> links =
      NcclCommunicator::Make(device, gang.communicator(), kLinking, progress_timeout);
  if (links.ok()) return links;
  const bool no_nccl = absl::IsFailedPrecondition(links.status());
  return WithFault(no_nccl ? Fault::kDevice : Fault::kGang, links.status());
}

// What to tell of the links between the ranks, if the job asks for it; "" on ranks but 0.
absl::StatusOr<std::string> CheckLinks(kernels::Device& device, const Gang& gang,
                                       const v1::Parallel& parallel) {
  if (!parallel.check_links() || gang.alone()) return "";
  TY_ASSIGN_OR_RETURN(const std::vector<LinkRate> rates, MeasureLinks(device, gang));
  return DescribeLinks(rates, [&](int rank) { return gang.communicator().name(rank); });
}

// What an attempt before left in memory. Nothing if that is gone or cannot be used; rank 0 then
// reports a warning that says why.
absl::StatusOr<std::optional<ChosenCheckpoint>> FindInMemory(const Gang& gang,
                                                             const RunRequest& request,
                                                             const v1::JobSpec& spec,
                                                             const data::Dataset& dataset,
                                                             RunObserver& observer) {
  if (!request.in_memory) return std::optional<ChosenCheckpoint>();
  StateInMemory state = *request.in_memory;
  state.may_differ = spec.parallel().second_owner();
  TY_ASSIGN_OR_RETURN(TakenState taken, TakeState(gang, state));
  if (taken.checkpoint) {
    const absl::Status fits = gang.Agree(CheckFits(*taken.checkpoint, spec, dataset));
    if (fits.ok()) {
      return ChosenCheckpoint{.checkpoint = *std::move(taken.checkpoint), .in_memory = true};
    }
    if (FaultOf(fits) == Fault::kGang) return fits;
    taken.why_not = std::string(fits.message());
  }
  if (gang.leads()) {
    TY_RETURN_IF_ERROR(WithStorageFault(observer.OnWarning(
        absl::StrCat("the state of step ", request.in_memory->step,
                     ", which was left in memory, cannot be used: ", taken.why_not,
                     "; the steps since the newest checkpoint are made again"))));
  }
  return std::optional<ChosenCheckpoint>();
}

// Checks the weights that the job begins with, if they are another model's.
absl::Status CheckStartOf(const v1::JobSpec& spec, const plan::Plan& plan,
                          const data::Dataset& dataset) {
  return spec.fine_tune().from().empty() ? absl::OkStatus() : CheckStart(spec, plan, dataset);
}

// The checkpoint that the run goes on from; none: it begins.
absl::StatusOr<std::optional<ChosenCheckpoint>> FindStart(
    const Gang& gang, ObjectStore& store, const RunRequest& request, const v1::JobSpec& spec,
    const plan::Plan& plan, const data::Dataset& dataset, RunObserver& observer) {
  TY_ASSIGN_OR_RETURN(std::optional<ChosenCheckpoint> in_memory,
                      FindInMemory(gang, request, spec, dataset, observer));
  if (in_memory) return in_memory;
  if (!request.restore) {
    if (request.in_memory) TY_RETURN_IF_ERROR(CheckStartOf(spec, plan, dataset));
    return std::optional<ChosenCheckpoint>();
  }
  TY_ASSIGN_OR_RETURN(ChosenCheckpoint chosen, ChooseCheckpoint(store, *request.restore, spec));
  TY_RETURN_IF_ERROR(CheckFits(chosen.checkpoint, spec, dataset));
  return std::optional<ChosenCheckpoint>(std::move(chosen));
}

// Puts the state that training goes on from into the arena.
absl::Status Begin(Trainer& trainer, const std::optional<ChosenCheckpoint>& chosen,
                   const Arithmetic& arithmetic, RunObserver& observer) {
  if (chosen) {
    const absl::Status restored = trainer.Restore(chosen->checkpoint);
    // Another attempt may go on from a checkpoint, which is whole for all that this says.
    const bool again = chosen->in_memory && absl::IsDataLoss(restored);
    TY_RETURN_IF_ERROR(
        WithStorageFault(again ? absl::UnavailableError(restored.message()) : restored));
  } else {
    TY_RETURN_IF_ERROR(trainer.Initialize());
  }
  const bool stored = chosen && !chosen->in_memory;
  return WithStorageFault(observer.OnRestored(
      trainer.steps_done(), stored ? chosen->checkpoint.uri : std::string(), arithmetic));
}

// All ranks begin with the same weights, and they are kept for later attempts.
absl::Status SettleStart(ObjectStore& store, const RunRequest& request, const Gang& gang,
                         const v1::JobSpec& spec, const LoadedWeights& loaded,
                         RunObserver& observer) {
  TY_RETURN_IF_ERROR(
      gang.CheckSame("the weights that training begins with", loaded.sha256, Fault::kData));
  if (!gang.leads()) return absl::OkStatus();
  TY_RETURN_IF_ERROR(
      KeepStart(store, request.checkpoint_root, request.attempt, SpecDigest(spec), loaded));
  return WithStorageFault(observer.OnNotice(loaded.summary));
}

// Removes what was left behind that checkpoint, and tells what was wrong with newer ones.
absl::Status SettleRestore(ObjectStore& store, const ChosenCheckpoint& chosen,
                           CheckpointWriter& checkpoints, RunObserver& observer) {
  if (!chosen.in_memory)
    TY_RETURN_IF_ERROR(WithStorageFault(DeleteAbandoned(store, chosen.checkpoint)));
  checkpoints.SetDamaged(chosen.damaged);
  for (const std::string& warning : chosen.warnings) {
    TY_RETURN_IF_ERROR(WithStorageFault(observer.OnWarning(warning)));
  }
  return absl::OkStatus();
}

// Tells where the arithmetic is not that of the checkpoint, or not that of all ranks, and of the
// links between these unless `links` is "".
absl::Status TellGang(const GangArithmetic& computed, const std::optional<ChosenCheckpoint>& chosen,
                      const std::string& links, RunObserver& observer) {
  std::vector<std::string> notices;
  if (!links.empty()) notices.push_back(links);
  if (!computed.difference.empty()) {
    notices.push_back("the arithmetic differs between ranks: " + computed.difference);
  }
  if (chosen) {
    const std::string changed = ArithmeticNotice(chosen->checkpoint.arithmetic, computed.arithmetic,
                                                 chosen->checkpoint.step);
    if (!changed.empty()) notices.push_back(changed);
  }
  for (const std::string& notice : notices) {
    TY_RETURN_IF_ERROR(WithStorageFault(observer.OnNotice(notice)));
  }
  return absl::OkStatus();
}

// Puts the parts in place and runs. Reading data begins before the kernels are prepared.
absl::StatusOr<RunResult> RunPlan(kernels::Device& device, const Gang& ranks,
                                  const RunRequest& request, const v1::JobSpec& spec,
                                  const data::Dataset& dataset, const plan::Plan& plan,
                                  RunObserver& observer, const std::atomic<bool>& stop) {
  TY_ASSIGN_OR_RETURN(const EvaluationTimes evaluation, WhenToEvaluate(spec.evaluation(), dataset));
  TY_ASSIGN_OR_FAULT(Fault::kStorage, const std::unique_ptr<ObjectStore> store,
                     OpenObjectStore(request.checkpoint_root));
  if (ranks.leads()) {
    TY_RETURN_IF_ERROR(WithStorageFault(store->DeleteStaged(request.checkpoint_root)));
  }
  TY_ASSIGN_OR_RETURN(std::optional<ChosenCheckpoint> chosen,
                      FindStart(ranks, *store, request, spec, plan, dataset, observer));
  TY_RETURN_IF_ERROR(CheckSameStart(ranks, spec, plan, dataset, chosen));
  const Arithmetic arithmetic = ArithmeticOf(device);
  TY_ASSIGN_OR_RETURN(const GangArithmetic computed,
                      CompareArithmetic(ranks, arithmetic, spec.parallel().arithmetic()));
  if (chosen) {
    TY_RETURN_IF_ERROR(CheckSameArithmetic(chosen->checkpoint.arithmetic, arithmetic,
                                           chosen->checkpoint.step, spec.parallel().arithmetic()));
  }
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<NcclCommunicator> links,
                      LinkGpus(device, ranks, plan, spec.parallel()));
  const Gang gang = ranks.LinkedBy(links.get());
  // Before anything else keeps the machine busy, and before the arena takes its memory.
  TY_ASSIGN_OR_RETURN(const std::string of_links, CheckLinks(device, gang, spec.parallel()));
  const Groups groups(gang, static_cast<int>(plan.host.ranks));
  const int64_t threads = LoaderThreads(spec, dataset, request.threads);
  RunState state = chosen ? chosen->checkpoint.run : RunState();
  data::Loader loader(dataset, LoaderOptions(device, spec, plan, groups.data(), threads,
                                             chosen ? chosen->checkpoint.step : 0, state.skips));

  TY_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Open(device, plan));
  Evaluator evaluator(*session, dataset, threads, groups);
  // Kernels are measured by running them on the arena, so that must be over before it holds
  // weights.
  if (device.Asynchronous() && (evaluation.every > 0 || evaluation.at_end)) {
    TY_RETURN_IF_ERROR(evaluator.Tune());
  }
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                      Trainer::Create(*session, spec, groups));
  if (plan.parameters_sharded) evaluator.GatherBy(trainer->across());
  TY_RETURN_IF_ERROR(Begin(*trainer, chosen, arithmetic, observer));
  CheckpointWriter checkpoints(
      *store, MakeIdentity(request, spec, dataset, plan, computed.arithmetic), plan, observer,
      [&device](size_t bytes) { return device.AllocateHost(bytes); });
  if (trainer->loaded()) {
    state.start_sha256 = trainer->loaded()->sha256;
    TY_RETURN_IF_ERROR(SettleStart(*store, request, gang, spec, *trainer->loaded(), observer));
  }
  if (gang.leads()) {
    if (chosen) TY_RETURN_IF_ERROR(SettleRestore(*store, *chosen, checkpoints, observer));
    TY_RETURN_IF_ERROR(TellGang(computed, chosen, of_links, observer));
  }
  std::optional<std::map<std::string, double>> from_memory;
  if (chosen && chosen->in_memory) from_memory = chosen->checkpoint.metrics;
  chosen.reset();
  Steps steps({.device = device,
               .gang = gang,
               .data_gang = groups.data(),
               .spec = spec,
               .dataset = dataset,
               .plan = plan,
               .evaluation = evaluation,
               .trainer = *trainer,
               .evaluator = evaluator,
               .loader = loader,
               .store = *store,
               .checkpoints = checkpoints,
               .observer = observer,
               .checkpoint_root = request.checkpoint_root,
               .loader_threads = threads,
               .from_memory = std::move(from_memory),
               .room_for_state = request.room_for_state,
               .keep_patience = request.keep_patience,
               .loss_patience = request.loss_patience,
               .meet_survivors = request.meet_survivors},
              state);
  const absl::StatusOr<RunResult> result = steps.Run(stop);
  if (!result.ok()) {
    // Before anything ends that waits for the device, and so for the other ranks.
    FailGang(gang, result.status());
    session->Synchronize().IgnoreError();
    if (FaultOf(result.status()) == Fault::kGang && spec.parallel().second_owner()) {
      steps.LeaveAfterLoss(result.status());
    }
  }
  if (result.ok()) {
    TY_RETURN_IF_ERROR(WithStorageFault(observer.OnFinished(*result)));
  } else if (!RolledBack(result.status())) {
    return result;
  }
  if (gang.leads()) checkpoints.RemoveSettled(kLastRemoval);
  return result;
}

absl::StatusOr<RunResult> RunRank(kernels::Device& device, const Gang& gang,
                                  const RunRequest& request, RunObserver& observer,
                                  const std::atomic<bool>& stop) {
  const absl::StatusOr<v1::JobSpec> spec = plan::ResolveSpec(request.spec);
  if (!spec.ok()) return WithSpecFault(spec.status());
  TY_RETURN_IF_ERROR(CheckCanTrain(gang, *spec));
  const absl::StatusOr<std::unique_ptr<data::Dataset>> dataset =
      data::OpenDataset(spec->data(), plan::WindowingOf(spec->model()));
  if (!dataset.ok()) return WithDataFault(dataset.status());
  const v1::JobSpec planned = PlannedFor(device, *spec, gang.size());
  absl::StatusOr<plan::Plan> plan = plan::BuildPlan(planned, (*dataset)->facts(), gang.rank());
  if (!plan.ok() && device.IsGpu()) {
    // The memory layout for GPUs takes a little more, for which the budget that the job was
    // accepted with may be too small.
    v1::JobSpec for_any = planned;
    for_any.mutable_resources()->set_device(spec->resources().device());
    plan = plan::BuildPlan(for_any, (*dataset)->facts(), gang.rank());
  }
  if (!plan.ok()) return WithSpecFault(plan.status());
  // Of a job that goes on those weights need not be there any more.
  if (!request.restore && !request.in_memory) {
    TY_RETURN_IF_ERROR(CheckStartOf(*spec, *plan, **dataset));
  }
  TY_RETURN_IF_ERROR(WithStorageFault(observer.OnStarted(*spec, *plan)));
  return RunPlan(device, gang, request, *spec, **dataset, *plan, observer, stop);
}

}  // namespace

absl::StatusOr<RunResult> Run(kernels::Device& device, const RunRequest& request,
                              RunObserver& observer, const std::atomic<bool>& stop) {
  const Gang gang(request.communicator);
  const absl::StatusOr<RunResult> result = RunRank(device, gang, request, observer, stop);
  if (!result.ok()) FailGang(gang, result.status());
  return result;
}

}  // namespace trainyard::engine
