#pragma once

// Workers that wait with everything loaded, so that a placed rank makes its first step at once.
//
// A waiting worker has a folder of its own, {state}/standby/{id}/, with its log. Taking it over
// moves the folder to {state}/ranks/{name}/, which is atomic, and then tells it through its stdin
// what to run, and as whom (executor/run/orders.h). One that is never told anything reads the end
// of its stdin when the agent dies, and leaves. Every rank starts this way; without a warm worker
// one is started cold and told at once.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "executor/agent/process.h"
#include "executor/run/confinement.h"
#include "storage/base/file.h"

namespace trainyard {

// What a worker waits for: a rank on one GPU, which it has opened, or a rank on any device.
struct Standby {
  std::string device;  // "cuda:1", or "" for any device
  int threads = 0;     // used only with a device

  friend bool operator==(const Standby&, const Standby&) = default;
};

// How every worker is started.
struct WorkerProgram {
  std::string path;
  // The kernel keeps the means of attack from it (executor/worker/confine.h) and, if there is a
  // root, all files but those below.
  bool confined = true;
  run::Roots roots;
};

struct WaitingWorker {
  Standby standby;
  Process process;
  FileDescriptor socket;  // the other end of its stdin
  FileDescriptor memory;  // its run::kStateDescriptor, if it has one
  std::string folder;
};

// Not thread-safe.
class WarmWorkers {
 public:
  // Keeps one for each of `wanted`. Removes what an earlier agent left in `folder`.
  WarmWorkers(WorkerProgram program, std::string folder, std::vector<Standby> wanted);

  // The destructor closes the sockets: waiting workers leave by themselves.
  ~WarmWorkers();

  // Returns a worker that waits for this device, else one that waits for any, else a new one.
  absl::StatusOr<WaitingWorker> Take(const std::string& device);

  // Kills the workers that wait for a device of `busy`: the rank that uses the device needs the
  // memory that they hold there.
  void MakeRoom(const std::set<std::string>& busy);

  // Starts the workers that are missing, except for `busy` devices, and drops those that died. A
  // worker that died is replaced after a pause, which grows by device. Call often.
  void Tend(absl::Duration now, const std::set<std::string>& busy);

  std::vector<pid_t> Pids() const;

  // Kills all and waits, for a second at most, until they are gone: they do nothing worth keeping.
  void KillAll();

 private:
  absl::StatusOr<WaitingWorker> Start(const Standby& standby);
  void DropDead(absl::Duration now);

  const WorkerProgram program_;
  const std::string folder_;
  const std::vector<Standby> wanted_;
  std::vector<WaitingWorker> waiting_;
  std::vector<WaitingWorker> leaving_;  // died or killed; not proven gone yet
  struct Pause {
    absl::Duration length, until, newest_start;
    void Begin(absl::Duration now);
  };
  std::map<std::string, Pause> pauses_;  // by device
  bool told_of_memory_ = false;          // that files in memory cannot be made
};

// The environment of a worker: the variables of ours that it needs, how long its threads spin
// (executor/run/spin.h) unless ours says that already, and nothing else. Credentials come with the
// orders of ranks that may have them: what was once in a process' environment stays in its memory.
std::vector<std::string> WorkerEnvironment(const char* const* ours);
// With what the kernel is to keep from it.
std::vector<std::string> WorkerEnvironment(const WorkerProgram& program);

}  // namespace trainyard
