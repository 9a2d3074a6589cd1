#pragma once

// One rank on this node, from its start (or its adoption by a restarted agent) until nothing of it
// is left: directory, process, lease, spool and log.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "executor/agent/log_file.h"
#include "executor/agent/process.h"
#include "executor/agent/reconcile.h"
#include "executor/agent/spool.h"
#include "executor/agent/warm_workers.h"
#include "executor/run/orders.h"
#include "executor/run/run_directory.h"
#include "storage/base/clock.h"

namespace trainyard {

// Not thread-safe.
class LocalRank {
 public:
  // Turns a waiting worker into this rank: its folder is renamed to `path`, and it gets `orders`,
  // in which run_directory is set here, and `state` (KeptStates::FileOf; or not valid). Fails, and
  // kills the worker, when `path` exists already or its files cannot be written. A worker that
  // cannot be told its rank after that is killed, and the rank returned, with a Failure for its
  // log.
  static absl::StatusOr<std::unique_ptr<LocalRank>> Start(const std::string& path,
                                                          const v1::Assignment& assignment,
                                                          WaitingWorker worker, run::Orders orders,
                                                          const FileDescriptor& state,
                                                          absl::Duration lease_until, Clock& clock);

  // A rank that never runs: a directory that holds only `events` and Exited.
  static absl::StatusOr<std::unique_ptr<LocalRank>> MakeGone(
      const std::string& path, const v1::Assignment& assignment,
      const std::vector<v1::RankEvent>& events, Clock& clock);

  // Takes over what an earlier agent left in `path`, whether its process still runs or is gone.
  static absl::StatusOr<std::unique_ptr<LocalRank>> Adopt(const std::string& path, Clock& clock);

  const std::string& name() const { return name_; }
  const std::string& path() const { return directory_.path(); }
  const std::string& job_name() const { return job_name_; }
  const v1::RankKey& key() const { return key_; }
  Spool& spool() { return spool_; }
  const LogFile& log() const { return log_; }
  absl::Duration started() const { return started_; }
  const std::vector<int>& slots() const { return slots_; }

  PresentRank Describe(absl::Duration now) const;
  bool HasProcess() const { return process_.has_value(); }
  // It has a process, which was not killed, and the server takes its events.
  bool RunsOn() const { return HasProcess() && !stopping_ && !spool_.done(); }
  // Readable once the process ends; -1 when there is none, or when it ended but processes that it
  // started have not.
  int pidfd() const { return process_ && !process_->Ended() ? process_->pidfd() : -1; }
  pid_t pid() const { return process_ ? process_->id().pid : 0; }

  // Extends how long the rank may live. A lease file of an older agent holds one time only, which
  // its worker takes for the right to write as well: such a rank gets `lease_until` instead of
  // `until`, so that it never runs on as an orphan.
  void ExtendLife(absl::Duration until, absl::Duration lease_until, absl::Duration fence_at);
  // Extends how long the rank may make checkpoints visible. Only for a rank that the server has
  // named since the session began.
  void ExtendRight(absl::Duration until);
  absl::Duration lease_until() const { return lease_ ? lease_->Life() : absl::ZeroDuration(); }
  absl::Duration fence_at() const { return lease_ ? lease_->Fence() : absl::ZeroDuration(); }

  // SIGTERM: save or keep the state and leave, within `grace` (zero: without a limit of ours).
  void Suspend(absl::Duration now, absl::Duration grace);
  // The grace of a rank that was told to leave, from now on, if it is another one than before.
  void SetGrace(absl::Duration now, absl::Duration grace);
  // Asks it to leave its state in memory when it is suspended: `wish` is what its file keep-state
  // is to hold (run_directory.h). "" takes that back, which has no effect once it packs its state.
  void SetKeepState(const std::string& wish);
  const std::string& keep_state() const { return keep_state_; }
  bool suspends() const { return suspend_sent_ && HasProcess(); }
  // Of a rank that is gone: what it left in memory (KeptStates), unless it failed by itself.
  FileDescriptor TakeMemory();
  void Kill();
  // Kills it because the agent has no right, or no wish, to run anything. It is reported as ended
  // by its lease (kExitFenced), which is nobody's fault.
  void Fence();
  // Kills it and reports why.
  void Fail(v1::Failure::Category category, const std::string& why);
  void Retire() { retired_ = true; }
  // Called when the desired set names the rank: the server wants to hear how it ends, even if it
  // said before that it takes no more events.
  void Reopen();

  // Writes the last event once the process and all that it started are gone. True when that has
  // just been done; while it returns false after the process ended or was killed, call it again
  // soon. `remark` is asked when a signal or the device ended the process, and not the agent: its
  // text is reported after the last lines of the log.
  bool TryFinish(const std::function<std::string()>& remark = nullptr);
  bool recorded() const { return spool_.ended(); }  // its last event is written
  bool retired() const { return retired_; }

  void RotateLog(int64_t limit);

 private:
  LocalRank(const std::string& path, v1::RankKey key, Clock& clock);
  // Adds a Failure, after which the job may be tried again, to last_words_, unless they hold
  // something already.
  void AddFailure(v1::Failure::Category category, const std::string& why);
  // Adds one that says that the disk is full.
  void TellDiskIsFull();

  const std::string name_;
  const v1::RankKey key_;
  const run::RunDirectory directory_;
  Clock& clock_;
  std::string job_name_;
  std::vector<int> slots_;
  Spool spool_;
  LogFile log_;
  std::optional<Process> process_;  // until it is gone
  FileDescriptor memory_;           // its run::kStateDescriptor; of a worker of before: none
  std::optional<run::LeaseFile> lease_;
  std::optional<ExitStatus> status_;       // proven gone; Exited may still have to be written
  std::vector<v1::RankEvent> last_words_;  // the agent's own events, written before Exited
  std::string remark_;                     // reported after the last lines of the log
  bool stopping_ = false;
  bool killed_ = false;  // by Kill, rather than that it had begun to end before
  bool fenced_ = false;
  bool suspend_sent_ = false;
  std::string keep_state_;  // what the file of that name holds; "": there is none
  bool retired_ = false;
  absl::Duration started_ = absl::ZeroDuration();
  absl::Duration grace_ = absl::ZeroDuration();  // as it was told last
  absl::Duration suspend_deadline_ = absl::InfiniteDuration();
};

}  // namespace trainyard
