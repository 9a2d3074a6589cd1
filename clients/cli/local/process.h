#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/file.h"

namespace trainyard::cli {

// A process, told apart from later ones that get the same pid.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks since boot, field 22 of /proc/PID/stat
};

// kNotFound when there is no such process, or only a zombie of it.
absl::StatusOr<ProcessId> FindProcess(pid_t pid);
bool IsAlive(const ProcessId& process);

// A descriptor that becomes readable when the process ends (pidfd). kNotFound when it has.
absl::StatusOr<FileDescriptor> OpenProcess(const ProcessId& process);

// False when it is gone already.
bool Signal(const ProcessId& process, int signal);

// False when it still runs after `limit`. Reaps it when it is a child.
bool WaitGone(const ProcessId& process, absl::Duration limit);

// Sends the signals one after the other, and SIGKILL last. Each is sent only if the process still
// runs after the time that the signal before it was given.
void StopProcess(const ProcessId& process,
                 const std::vector<std::pair<int, absl::Duration>>& signals);

struct User {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name;
};

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the program
  std::string log_path;           // standard output and error are appended; stdin is /dev/null
  std::string pid_path;  // "pid start_time", written before the program starts; may be empty
  std::vector<std::pair<std::string, std::string>> environment;  // on top of this process' own
  std::optional<User> user;  // whom to become; the caller is root then
  bool new_session = false;  // else a process group of its own
  int inherited_fd = -1;     // stays open in the program
};

// Starts a program. If exec fails, its error is the returned status. The calling process must have
// no other threads.
absl::StatusOr<ProcessId> Spawn(const SpawnOptions& options);

// Runs a program to its end. Anything but exit code 0 is kInternal. A program that runs longer than
// `limit` is killed: kDeadlineExceeded.
absl::Status RunToEnd(const SpawnOptions& options, absl::Duration limit);

// The live process that a pid file names; kNotFound when there is none.
absl::StatusOr<ProcessId> ReadPidFile(const std::string& path);

// Live processes with NAME=VALUE in their environment, among those whose environment we may read.
std::vector<ProcessId> FindByEnvironment(const std::string& name, const std::string& value);

// The last `lines` lines of a file, or "" when it cannot be read.
std::string TailOfFile(const std::string& path, int lines);

}  // namespace trainyard::cli
