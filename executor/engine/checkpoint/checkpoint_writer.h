#pragma once

// Writes checkpoints in the background while training goes on.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "executor/engine/checkpoint/write_checkpoint.h"
#include "storage/objects/object_store.h"

namespace trainyard::engine {

// Hears of checkpoints. Called on the writer's thread.
class CheckpointListener {
 public:
  virtual ~CheckpointListener() = default;

  // A verified checkpoint is visible. `removed` are to be deleted once this report is settled:
  // nobody may restore from them after having heard of it. Returns the number of the report.
  virtual absl::StatusOr<int64_t> OnCheckpoint(const WrittenCheckpoint& written, bool final,
                                               const std::vector<std::string>& removed) = 0;

  // The number of the newest report that is known to whoever would restore this job.
  virtual int64_t SettledReport() = 0;

  // Whether checkpoints may be made visible and removed now. False while nobody knows whether
  // another attempt of the job has begun.
  virtual bool MayWrite() { return true; }

  // The checkpoint of `step` is written and waits for the right to make it visible. Called once for
  // each.
  virtual void OnCheckpointWaits(int64_t /*step*/) {}

  // A checkpoint that nobody waits for could not be written; training goes on.
  virtual void OnCheckpointFailed(int64_t step, const absl::Status& status) = 0;
};

// One thread and one host copy. Save is for the trainer's thread: it waits for the copy only, and
// for an earlier checkpoint that is still being written: a policy that asks for one every N steps
// gets them all, and a disk that is too slow shows in the step time rather than in what can be
// lost.
//
// Without the right to write, a checkpoint that is written waits, complete but invisible, until the
// right is back; training goes on, and a newer checkpoint takes the place of the one that waits.
//
// Old checkpoints are removed after the newer one was verified and reported, and that report is
// settled: until then the job may have to restore from them.
class CheckpointWriter {
 public:
  // `store` and `listener` must outlive the writer. `allocate`: as of Snapshot.
  CheckpointWriter(ObjectStore& store, CheckpointIdentity identity, const plan::Plan& plan,
                   CheckpointListener& listener, Snapshot::Allocate allocate = nullptr);
  ~CheckpointWriter();  // finishes what is being written
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Checkpoints that were found broken: they do not count as kept.
  void SetDamaged(std::vector<int64_t> steps);

  struct Purpose {
    bool needed = false;     // a failure is returned by Wait; else the listener gets it
    bool final = false;      // holds the finished model
    bool last = false;       // of this attempt: whoever saves it waits, and trains no more
    bool went_back = false;  // this is a rollback: checkpoints of later steps are removed
  };
  // `copy` fills the snapshot. A step that was saved already with the same RunState is not written
  // again.
  absl::Status Save(CheckpointContent content, const Purpose& purpose,
                    const std::function<absl::Status(Snapshot&)>& copy);

  // Leaves the state in `file`, which is in memory, for the next attempt; kResourceExhausted: it
  // has more than `most_bytes`. Waits for a checkpoint that is still being written.
  absl::Status Pack(const CheckpointContent& content, int file, int64_t most_bytes,
                    const std::function<absl::Status(Snapshot&)>& copy);

  // Likewise of `snapshot`, and whatever is being written meanwhile.
  absl::Status PackBeside(const CheckpointContent& content, int file, int64_t most_bytes,
                          const Snapshot& snapshot) const;

  // Waits until nothing is being written. Returns the failure of the last needed checkpoint, or of
  // a report, once.
  absl::Status Wait();

  // Waits until nothing is being written. Wait returns the failure afterwards.
  void AwaitWritten();

  // Waits until nothing is being written, giving up a checkpoint that waits for the right to write.
  // Returns whether the last checkpoint that could not be written is that of `step`.
  bool Failed(int64_t step);

  // Removes what may be removed by now, waiting at most `patience` for reports to settle.
  void RemoveSettled(absl::Duration patience);

 private:
  struct Request {
    CheckpointContent content;
    Purpose purpose;
  };
  struct Removal {
    std::string uri;
    int64_t report = 0;  // to be settled first
  };

  void Run();
  // Waits until nothing is being written. `give_up`: a checkpoint that waits for the right to write
  // is given up.
  void AwaitIdle(bool give_up) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until the listener has the right to write. kUnavailable: the checkpoint was given up.
  absl::Status AwaitRight(int64_t step);
  absl::Status Write(const Request& request);
  absl::StatusOr<std::vector<std::string>> ChooseRemovals(const Request& request);

  ObjectStore& store_;
  const CheckpointIdentity identity_;
  CheckpointListener& listener_;
  Snapshot snapshot_;  // the trainer's while idle, the writer's while busy

  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool give_up_ ABSL_GUARDED_BY(mu_) = false;  // AwaitRight must stop waiting
  Request request_ ABSL_GUARDED_BY(mu_);
  std::optional<CheckpointContent> saved_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t failed_step_ ABSL_GUARDED_BY(mu_) = -1;
  std::vector<int64_t> damaged_ ABSL_GUARDED_BY(mu_);
  std::vector<Removal> removals_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace trainyard::engine
