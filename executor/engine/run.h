#pragma once

// A whole run: from a spec to the finished model.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/engine/checkpoint/checkpoint_writer.h"
#include "executor/engine/kept_state.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/plan/graph/plan.h"
#include "kernels/device.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

struct RunResult {
  bool suspended =
      false;  // stopped early on request, with a checkpoint (except at step 0), or kept
  int64_t step = 0;
  std::string reason;  // why it ended before the last step without having been asked
  bool kept = false;   // suspended, with its state in memory in place of a checkpoint
};

// Hears of a run. An error that it returns ends the run. Called on the run's thread, except for the
// methods of CheckpointListener.
class RunObserver : public CheckpointListener {
 public:
  virtual absl::Status OnStarted(const v1::JobSpec& spec, const plan::Plan& plan) = 0;

  // Training goes on from `step`, with `arithmetic` on this rank; `uri` is empty for a fresh start,
  // and for a state that was kept in memory.
  virtual absl::Status OnRestored(int64_t step, const std::string& uri,
                                  const Arithmetic& arithmetic) = 0;

  enum class Split { kTrain, kValidation };
  virtual absl::Status OnMetrics(int64_t step, Split split,
                                 const std::map<std::string, double>& values) = 0;

  virtual absl::Status OnNotice(const std::string& message) = 0;
  virtual absl::Status OnWarning(const std::string& message) = 0;

  virtual absl::Status OnFinished(const RunResult& result) = 0;

  // The gang broke for `why`, and this rank has the whole state, or its share of it
  // (Parallel.second_owner): it waits a while for RunRequest::room_for_state, to leave it there, or
  // to help the rank that does. If it has left it, it repeats as OnMetrics
  // what rank 0 may not have told of the steps after `told_after`, and calls OnFinished with a
  // result that is `kept`. The run fails for `why` all the same. Called only where there is a
  // room_for_state.
  virtual absl::Status OnLeftAlone(const absl::Status& /*why*/, int64_t /*told_after*/) {
    return absl::OkStatus();
  }
};

struct RestorePoint {
  std::string uri;
  std::string manifest_sha256;  // "": not known
};

struct RunRequest {
  v1::JobSpec spec;                     // as submitted
  std::optional<RestorePoint> restore;  // absent: from step 0
  // What an attempt before left in memory, which is newer than `restore`, or as new.
  std::optional<StateInMemory> in_memory;
  // Called once a stop was asked for: the file to leave the state in, or nothing if a checkpoint is
  // to be written. Null means a checkpoint. Called again and again once the gang broke, until the
  // state is asked for.
  std::function<std::optional<RoomForState>()> room_for_state;
  // Agents tell their ranks one after the other that the state is to stay in memory. So long the
  // gang trains on while rank 0 does not know of it yet, or of no node that can keep it; then it
  // stops, and writes a checkpoint.
  absl::Duration keep_patience = absl::Seconds(2);
  // So long a rank whose gang broke waits to be told where to leave its state: its server learns of
  // that from it.
  absl::Duration loss_patience = absl::Seconds(15);
  std::string checkpoint_root;  // URI of a folder; need not exist
  int64_t attempt = 1;
  int threads = 1;  // of the host, for what is not the device's work
  // The ranks that train together, each with a Run of its own; null: this one is alone. It must
  // outlive the run.
  Communicator* communicator = nullptr;
  // Meets those of them that are left once the gang broke (RoomForState::survivors, of at least
  // two), in their order. Null: they are not met, and what each has a share of is not left.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const std::vector<int>& survivors)>
      meet_survivors;
};

// Trains to the end, or until `stop` is set: then the current step is finished and a checkpoint
// written, or the state left in memory. Failures have a fault (fault.h). After one that is
// RolledBack, call it again with the newest checkpoint as the restore point. When the restore point
// is damaged, the newest older checkpoint that is whole serves instead, with a warning; the same
// steps give the same bits again. Of several ranks rank 0 alone reports metrics and writes
// checkpoints, which all must be able to read; when one fails, all do.
absl::StatusOr<RunResult> Run(kernels::Device& device, const RunRequest& request,
                              RunObserver& observer, const std::atomic<bool>& stop);

}  // namespace trainyard::engine
