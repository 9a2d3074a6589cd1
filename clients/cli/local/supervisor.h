#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/cli/local/restart_policy.h"
#include "clients/cli/local/yard.h"
#include "storage/base/file.h"

namespace trainyard::cli {

// Keeps the parts of a yard running until it is asked to stop (SIGTERM, SIGINT) or the yard's
// folder vanishes. One thread: a loop over signals, pidfds and due restarts.
//
// It may be killed at any moment: parts do not notice, each one's pid file was written before its
// program started, and the next supervisor adopts what still runs.
class Supervisor {
 public:
  // Takes over the lock of the yard.
  Supervisor(Yard yard, FileDescriptor lock) : yard_(std::move(yard)), lock_(std::move(lock)) {}

  // Returns after every part was stopped.
  absl::Status Run();

 private:
  struct Child {
    Part part;
    ProcessId process;
    FileDescriptor pidfd;  // invalid while the part is down
    absl::Time started;
    absl::Time due = absl::InfinitePast();  // next start, while it is down
    RestartPolicy policy;
    int restarts = 0;
    std::string last_exit;  // how it ended the last time
  };

  absl::Status SetUp();
  void AdoptOrStart(Child& child);
  void Start(Child& child);
  void Watch(Child& child, const ProcessId& process);
  void OnExit(Child& child);
  void Reap();
  // False when it is time to stop.
  bool WaitForSomething();
  void StopAll();
  void WriteState();

  const Yard yard_;
  const FileDescriptor lock_;
  FileDescriptor signals_;
  std::vector<Child> children_;
};

// What a supervisor last wrote about a part.
struct PartState {
  std::string name;
  int restarts = 0;
  int early_exits = 0;
  std::string last_exit;
};

// From DIR/run/state.json; empty when there is none.
std::vector<PartState> ReadPartStates(const Yard& yard);

// Stops parts and workers that run without a supervisor. Returns how many processes it ended.
int StopUnsupervisedProcesses(const Yard& yard, const std::vector<Part>& parts);

}  // namespace trainyard::cli
