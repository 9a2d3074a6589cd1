#include "executor/worker/alone.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "absl/strings/match.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/fault.h"
#include "executor/engine/gang.h"
#include "executor/engine/run.h"
#include "executor/plan/spec/spec.h"
#include "executor/worker/exit_code.h"
#include "executor/worker/open_device.h"
#include "executor/worker/progress.h"
#include "executor/worker/ranks.h"
#include "executor/worker/stop_signal.h"
#include "proto/text/job_file.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"
#include "storage/base/status.h"
#include "storage/objects/object_store.h"

namespace trainyard::worker {
namespace {

absl::StatusOr<v1::JobSpec> ReadSpec(const AloneOptions& options) {
  TY_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(options.spec, int64_t{16} << 20));
  TY_ASSIGN_OR_RETURN(v1::Job job, ParseJobFile(yaml, options.spec));
  for (const std::string& set : options.set) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("--set ", set, ": expected field=value"));
    }
    TY_RETURN_IF_ERROR(SetField(job, set.substr(0, equals), set.substr(equals + 1)));
  }
  if (job.spec().parallel().auto_()) {
    return absl::InvalidArgumentError(
        "spec.parallel.auto: found true, and there is no service that could choose by the memory "
        "of its "
        "slots; leave it out, and name shard, tensor, pipeline and layout where they are not the "
        "default");
  }
  return job.spec();
}

absl::Status CheckSpec(const AloneOptions& options) {
  TY_ASSIGN_OR_FAULT(engine::Fault::kSpec, const v1::JobSpec spec, ReadSpec(options));
  return engine::WithFault(engine::Fault::kSpec, plan::ResolveSpec(spec).status());
}

// The newest checkpoint in `root`, if any; without `resume` it is an error that there is one.
absl::StatusOr<std::optional<engine::RestorePoint>> FindRestorePoint(const std::string& root,
                                                                     bool resume) {
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store, OpenObjectStore(root));
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, engine::ListSteps(*store, root));
  if (steps.empty()) return std::nullopt;
  const std::string uri = absl::StrCat(root, "/", engine::StepFolder(steps.back()));
  if (!resume) {
    return engine::WithFault(
        engine::Fault::kSpec,
        absl::AlreadyExistsError(
            absl::StrCat(uri,
                         " is there already; --resume goes on from it, another --out begins "
                         "anew")));
  }
  return engine::RestorePoint{.uri = uri};
}

// What ranks other than rank 0 print: their warnings, each with its rank. (Rank 0 has Progress.)
class Warnings : public engine::RunObserver {
 public:
  explicit Warnings(int rank) : rank_(rank) {}

  absl::Status OnStarted(const v1::JobSpec&, const plan::Plan&) override { return {}; }
  absl::Status OnRestored(int64_t, const std::string&, const Arithmetic&) override { return {}; }
  absl::Status OnMetrics(int64_t, Split, const std::map<std::string, double>&) override {
    return {};
  }
  absl::Status OnNotice(const std::string&) override { return {}; }
  absl::Status OnWarning(const std::string& message) override {
    std::cerr << absl::StrCat("rank ", rank_, ": warning: ", message, "\n");
    return {};
  }
  absl::Status OnFinished(const engine::RunResult&) override { return {}; }
  absl::StatusOr<int64_t> OnCheckpoint(const engine::WrittenCheckpoint&, bool,
                                       const std::vector<std::string>&) override {
    return 0;
  }
  int64_t SettledReport() override { return 0; }
  void OnCheckpointFailed(int64_t, const absl::Status&) override {}

 private:
  const int rank_;
};

absl::Status Train(const AloneOptions& options, engine::Communicator* communicator) {
  TY_ASSIGN_OR_FAULT(engine::Fault::kSpec, const v1::JobSpec spec, ReadSpec(options));
  const std::string out = std::filesystem::absolute(options.out).lexically_normal().string();
  engine::RunRequest request;
  request.spec = spec;
  request.checkpoint_root = absl::StrCat(out, out.back() == '/' ? "" : "/", "checkpoints");
  request.threads = options.threads;
  request.communicator = communicator;
  TY_ASSIGN_OR_FAULT(engine::Fault::kStorage, request.restore,
                     FindRestorePoint(request.checkpoint_root, options.resume));
  std::string name = options.device;
  const int rank = communicator == nullptr ? 0 : communicator->rank();
  if (name.empty()) name = spec.resources().device() == v1::Resources::CUDA ? "cuda" : "cpu";
  if (name == "cuda") name = absl::StrCat("cuda:", rank);
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device,
                      OpenDevice(name, options.threads));
  const std::string ranks =
      communicator == nullptr ? "" : absl::StrCat(", ", communicator->description());
  const bool leads = rank == 0;
  std::optional<MetricsFile> metrics;
  if (leads && !options.metrics.empty()) {
    TY_ASSIGN_OR_FAULT(engine::Fault::kStorage, metrics, MetricsFile::Open(options.metrics));
  }
  Progress progress(std::cout, isatty(STDOUT_FILENO) != 0, SystemClock(),
                    absl::StrCat(device->Description(), ranks), std::move(metrics));
  Warnings warnings(rank);
  engine::RunObserver& observer = leads ? static_cast<engine::RunObserver&>(progress) : warnings;
  for (;;) {
    const absl::Status status = engine::Run(*device, request, observer, StopWish()).status();
    if (!engine::RolledBack(status)) return status;
    if (leads) TY_RETURN_IF_ERROR(progress.OnWarning(std::string(status.message())));
    TY_ASSIGN_OR_FAULT(engine::Fault::kStorage, request.restore,
                       FindRestorePoint(request.checkpoint_root, /*resume=*/true));
  }
}

int ExitCode(const absl::Status& status, const std::string& who) {
  if (!status.ok()) std::cerr << absl::StrCat("trainyard-worker: ", who, status.message(), "\n");
  return ExitCodeOf(status);
}

int TrainRank(const AloneOptions& options, engine::Rendezvous rendezvous) {
  CatchStopSignals(/*also_interrupt=*/true);
  rendezvous.allow_shared_memory = !options.tcp;
  const int rank = rendezvous.rank;
  const absl::StatusOr<v1::JobSpec> spec = ReadSpec(options);
  if (!spec.ok()) return ExitCodeOf(engine::WithFault(engine::Fault::kSpec, spec.status()));
  engine::SetBounds(spec->parallel(), rendezvous);
  absl::StatusOr<std::unique_ptr<engine::Communicator>> met = engine::Meet(std::move(rendezvous));
  const absl::Status status =
      met.ok() ? Train(options, met->get()) : engine::WithFault(engine::Fault::kGang, met.status());
  // Rank 0 says what made it or another give up; the others say what no other can.
  const bool said = absl::IsCancelled(status) || engine::FaultOf(status) == engine::Fault::kSpec;
  if (rank > 0 && said) return ExitCodeOf(status);
  return ExitCode(status, absl::StrCat("rank ", rank, ": "));
}

}  // namespace

int RunAlone(const AloneOptions& options) {
  if (options.ranks > 1) {
    if (absl::StartsWith(options.device, "cuda:")) {
      return ExitCode(
          engine::WithFault(engine::Fault::kSpec,
                            absl::InvalidArgumentError(absl::StrCat(
                                "--device ", options.device, " is one GPU for ", options.ranks,
                                " ranks; use cuda, which gives each rank its own"))),
          "");
    }
    // What is wrong with the spec is said once.
    const absl::Status spec = CheckSpec(options);
    if (!spec.ok()) return ExitCode(spec, "");
    return RunRanks(options.ranks, [&](engine::Rendezvous rendezvous) {
      rendezvous.version = absl::StrCat("trainyard ", TRAINYARD_VERSION);
      return TrainRank(options, std::move(rendezvous));
    });
  }
  CatchStopSignals(/*also_interrupt=*/true);
  return ExitCode(Train(options, nullptr), "");
}

}  // namespace trainyard::worker
