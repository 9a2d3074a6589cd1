#pragma once

// One rank of one attempt on disk: what agent and worker say to each other, and how each finds out
// what the other did while it was away. Layout of {state}/ranks/{job_uid}.{attempt}.{rank}/:
//
//   assignment.json  the Assignment, protobuf JSON; written once by the agent before the start
//   claim            its key.claim, if it has one, which workers from before there were claims
//                    would refuse there; written before it
//   events.log       RankEvents by the worker, the last one (Exited) by the agent; event_log.h.
//                    A long run's beginning, acknowledged long ago, may be a hole
//   lease            3 native int64, CLOCK_BOOTTIME nanoseconds: until when the worker may run,
//                    until when it may make checkpoints visible, when the agent kills it
//                    (LeaseFile). An older agent writes the first only
//   pid              "pid starttime" of the worker as in /proc/{pid}/stat: survives reuse of pids
//   acked            "sequence offset state": up to where in events.log the server stored the
//                    events; written lazily, may lag behind; state: open, done (the last one is
//                    stored), refused (the server takes no more)
//   keep-state       the agent asks, before SIGTERM, that the job's state be left in memory rather
//                    than in a checkpoint, and how many bytes it may have on this node. "BYTES
//                    here": the next attempt runs on this node, too, which may keep the state.
//                    "BYTES elsewhere": it does not, but runs on another node of this gang, to
//                    which the state is to be sent. "BYTES alone": the gang is broken, also if it
//                    does not know of it, and each of its nodes keeps the state by itself
//                    (Parallel.second_owner): 0 bytes until this rank has said that it has it, and
//                    while another one of the node keeps it. "BYTES alone 0,2,3": as before, and
//                    these ranks of the gang are left, which bring their shares together
//   reserve          space for the last events on a full disk; removed once they are written
//   log, log.1       stdout and stderr of the worker, rotated by copying and truncating
//   log.start        how many bytes the worker wrote before those of log.1, and before those of log
//
// All of it is the agent's: a rank that runs as another user (Assignment.unix_user) may read, by
// its group, assignment, claim, lease and keep-state, write events.log and append to log, and make
// no file here.
//
// Signals to a worker: SIGTERM: save or keep the state and leave (SUSPEND). SIGKILL: everything
// else.
//
// What the agent tells a waiting worker is in orders.h. Descriptor 3 of a worker is a file in
// memory, which the agent has, too: where it leaves its state if it is asked to (keep-state).

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainyard/v1/run.pb.h"

namespace trainyard::run {

inline constexpr size_t kLongestKeepState = size_t{1} << 16;  // bytes

class RunDirectory {
 public:
  RunDirectory(std::string path) : path_(std::move(path)) {}  // NOLINT: a path is one

  static std::string NameOf(const v1::RankKey& key);
  // kInvalidArgument: not what NameOf makes of a key whose job_uid is [A-Za-z0-9_-]{1,64}.
  static absl::StatusOr<v1::RankKey> ParseName(const std::string& name);

  const std::string& path() const { return path_; }
  std::string assignment_path() const { return path_ + "/assignment.json"; }
  std::string claim_path() const { return path_ + "/claim"; }
  std::string events_path() const { return path_ + "/events.log"; }
  std::string lease_path() const { return path_ + "/lease"; }
  std::string pid_path() const { return path_ + "/pid"; }
  std::string acked_path() const { return path_ + "/acked"; }
  std::string keep_state_path() const { return path_ + "/keep-state"; }
  std::string log_path() const { return path_ + "/log"; }
  // Space that the agent gives back when the disk is too full to say how the rank ended.
  std::string reserve_path() const { return path_ + "/reserve"; }

  // Makes the directory as well. Readers see the whole file or none.
  absl::Status WriteAssignment(const v1::Assignment& assignment) const;
  absl::StatusOr<v1::Assignment> ReadAssignment() const;

 private:
  std::string path_;
};

// Until when a worker may run, and until when it may write what others see, shared through a mapped
// file. The agent extends both with every acknowledged heartbeat, and only the first while the
// server does not answer. The worker's watchdog ends the process once the first has passed, so a
// worker does not outlive its agent for long, whoever was killed or stopped.
class LeaseFile {
 public:
  // `create` (the agent): for writing; a new file holds a lease that has ended. Otherwise (the
  // worker): read-only.
  static absl::StatusOr<LeaseFile> Open(const std::string& path, bool create);
  LeaseFile(LeaseFile&&) noexcept;
  LeaseFile& operator=(LeaseFile&&) noexcept;
  ~LeaseFile();

  // On Clock::SinceBoot; never shortens.
  void ExtendLife(absl::Duration until);
  void ExtendRight(absl::Duration until);
  void ExtendFence(absl::Duration until);

  // The file was made by an older agent and holds only until when the worker may run. Its worker
  // takes that for the right to write as well, so it must not run past the lease.
  bool tells_one_time() const { return one_time_; }

  absl::Duration Life() const;
  // Until when checkpoints may be made visible or removed; Life() if the agent never wrote this
  // time.
  absl::Duration Right() const;
  // When the agent kills the worker if the server still does not answer; 0: once Life() is over. An
  // agent that is restarted meanwhile reads it.
  absl::Duration Fence() const;

 private:
  LeaseFile(void* map, bool one_time) : map_(map), one_time_(one_time) {}
  void Extend(int index, absl::Duration time);
  absl::Duration Load(int index) const;

  void* map_ = nullptr;
  bool one_time_ = false;
};

// The descriptor of the file in memory, which has this name in /proc.
inline constexpr int kStateDescriptor = 3;
inline constexpr char kStateFileName[] = "trainyard-state";

// Exit codes of trainyard-worker; also in its --help and README.
inline constexpr int kExitDone = 0;       // finished, or suspended: its state is saved or kept
inline constexpr int kExitUsage = 64;     // wrong command line, spec or unimplemented field
inline constexpr int kExitData = 65;      // data missing or malformed
inline constexpr int kExitInternal = 70;  // a defect
inline constexpr int kExitDevice = 71;    // device fault or out of memory
inline constexpr int kExitStorage = 74;   // checkpoint not written or read, or a disk failed
inline constexpr int kExitFenced = 75;    // the lease ended
inline constexpr int kExitNumeric = 76;   // loss or gradient became NaN or infinite
inline constexpr int kExitGang = 77;      // another rank failed, or the link to it

}  // namespace trainyard::run
