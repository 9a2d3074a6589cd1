#pragma once

// A worker's process and everything that it started: one session and process group each, so that
// all of it can be killed and proven gone.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/file.h"

namespace trainyard {

// Names a process for good: a pid is reused, a pid with its start time is not (until a reboot).
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // ticks since boot, field 22 of /proc/{pid}/stat

  // "pid starttime"
  std::string ToString() const;
  static absl::StatusOr<ProcessId> Parse(const std::string& text);
};

// kNotFound: there is no such process.
absl::StatusOr<ProcessId> IdentifyProcess(pid_t pid);

struct ExitStatus {
  int code = 0;
  int signal = 0;
  bool unknown = false;  // it was not our child
};

struct SpawnRequest {
  std::string program;
  std::vector<std::string> arguments;    // without the program
  std::vector<std::string> environment;  // "NAME=value", all of it
  std::string folder;                    // working directory
  int stdin_fd = -1;
  int state_fd = -1;        // becomes run::kStateDescriptor; -1: there is none
  std::string output_path;  // stdout and stderr are appended there
};

// Movable; not thread-safe. Destroying it kills nothing.
class Process {
 public:
  // Starts the program in a session of its own, with no descriptors but 0, 1, 2 and, if there is a
  // state_fd, run::kStateDescriptor, and with default signal handling.
  static absl::StatusOr<Process> Spawn(const SpawnRequest& request);

  // One that an earlier agent started; kNotFound when it is gone.
  static absl::StatusOr<Process> Adopt(ProcessId id);

  const ProcessId& id() const { return id_; }
  int pidfd() const { return pidfd_.get(); }  // readable once the process has ended

  void Signal(int signal);  // the process alone
  void KillGroup();         // SIGKILL to all of the group

  // Once the process has ended, kills what is left of its group. Returns the status when nothing is
  // left, and nullopt until then (call again soon).
  std::optional<ExitStatus> TryReap();

  bool Ended() const;  // the process itself; it may not be reaped yet
  // Or has begun to end: others may have noticed that already, by what it had open.
  bool Ends() const;

 private:
  Process(ProcessId id, FileDescriptor pidfd, bool child)
      : id_(id), pidfd_(std::move(pidfd)), child_(child) {}

  ProcessId id_;
  FileDescriptor pidfd_;
  bool child_ = false;
  std::optional<ExitStatus> status_;  // of the process itself, once collected
};

// Kills what is left of the group `pgid`, whose leader is gone: only processes whose working
// directory is in `folder`, since the number may have been reused. Returns whether anything was
// left.
bool KillOrphansOf(pid_t pgid, const std::string& folder);

// Descendants of workers that left their group and were handed to us (we are their subreaper):
// kills and reaps every child but those in `known`. What does not die within a second is left to
// the next call.
void KillStrayChildren(const std::vector<pid_t>& known);

}  // namespace trainyard
