#include "executor/worker/alone.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/fault.h"
#include "executor/engine/run.h"
#include "executor/worker/exit_code.h"
#include "executor/worker/open_device.h"
#include "executor/worker/progress.h"
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
  return job.spec();
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

absl::Status Train(const AloneOptions& options) {
  TY_ASSIGN_OR_FAULT(engine::Fault::kSpec, const v1::JobSpec spec, ReadSpec(options));
  const std::string out = std::filesystem::absolute(options.out).lexically_normal().string();
  engine::RunRequest request;
  request.spec = spec;
  request.checkpoint_root = absl::StrCat(out, out.back() == '/' ? "" : "/", "checkpoints");
  request.threads = options.threads;
  TY_ASSIGN_OR_FAULT(engine::Fault::kStorage, request.restore,
                     FindRestorePoint(request.checkpoint_root, options.resume));
  std::string name = options.device;
  if (name.empty()) name = spec.resources().device() == v1::Resources::CUDA ? "cuda:0" : "cpu";
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device,
                      OpenDevice(name, options.threads));
  Progress progress(std::cout, isatty(STDOUT_FILENO) != 0, SystemClock(), device->Description());
  for (;;) {
    const absl::Status status = engine::Run(*device, request, progress, StopWish()).status();
    if (!engine::RolledBack(status)) return status;
    TY_RETURN_IF_ERROR(progress.OnWarning(std::string(status.message())));
    TY_ASSIGN_OR_FAULT(engine::Fault::kStorage, request.restore,
                       FindRestorePoint(request.checkpoint_root, /*resume=*/true));
  }
}

}  // namespace

int RunAlone(const AloneOptions& options) {
  const absl::Status status = Train(options);
  if (!status.ok()) std::cerr << "trainyard-worker: " << status.message() << std::endl;
  return ExitCodeOf(status);
}

}  // namespace trainyard::worker
