#pragma once

// Ranks as real processes, which are killed and stopped.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "executor/engine/parallel/rendezvous.h"
#include "storage/base/file.h"

namespace trainyard::engine::testing {

// Which kind of link the ranks of a test use.
enum class LinkKind { kMemory, kTcp };

// LocalRendezvous for a test: short timeouts, one kind of link.
std::vector<Rendezvous> TestRendezvous(int ranks, LinkKind kind);

// Forks a process per rank. Nothing here waits longer than 30 s.
class Gang {
 public:
  // Says a word to the test, which may wait for it.
  using Say = std::function<void(const std::string& word)>;
  // What a rank does, in its process; returns its result. By convention "" is a good one.
  using Body = std::function<std::string(const Rendezvous&, const Say&)>;

  Gang(const std::vector<Rendezvous>& ranks, const Body& body);
  // Kills what still runs.
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  void Signal(int rank, int signal) const;
  // Returns whether `rank` says `word`, or has said it.
  bool Hears(int rank, const std::string& word);
  // What the body of `rank` returned, or "signal 9", "exit code 66" or "no end in sight".
  std::string Result(int rank);
  std::vector<std::string> Results();

 private:
  struct Process {
    pid_t pid = 0;
    FileDescriptor pipe;
    std::string said;
    bool open = true;
  };
  bool ReadMore(Process& process, absl::Time until);
  std::vector<Process> processes_;
};

// Meets with the others and runs `body`; the words of an error as a result.
using CommunicatorBody = std::function<absl::Status(Communicator&, const Gang::Say&)>;
Gang::Body Meeting(CommunicatorBody body);

// `bytes` bytes that depend on all of the numbers.
std::string Content(uint64_t seed, int from, int to, size_t bytes);

}  // namespace trainyard::engine::testing
