#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/sizing/frames.h"
#include "server/sizing/limits.h"
#include "storage/base/file.h"

namespace trainyard {

// One helper, seen from the server. One question at a time; Kill may be called meanwhile.
class SizerProcess {
 public:
  // Starts the program that `program` is open on, called `name`; does not wait for it.
  // kUnavailable: the machine starts no process now.
  static absl::StatusOr<std::unique_ptr<SizerProcess>> Start(const FileDescriptor& program,
                                                             const std::string& name,
                                                             const SizingLimits& limits);
  // Ends the process. One that not even SIGKILL ends within a second (its file system hangs) is
  // left to itself, and is reaped by a later destructor.
  ~SizerProcess();

  enum class End {
    kAnswered,
    kOutOfMemory,
    kOutOfTime,
    kKilled,   // by SIGKILL from outside, as the kernel does when the machine's memory runs out
    kCrashed,  // ended by another signal, or exited
  };
  struct Outcome {
    End end = End::kAnswered;
    absl::StatusOr<sizing::Answer> answer = absl::UnknownError("no answer");
    std::string file;    // that it was looking at; empty: none
    bool plans = false;  // it was planning
    std::string how;     // how it crashed: "signal 11 (Segmentation fault)"
  };

  // Asks, and returns within the time of the limits, or by `until` if that is sooner, and a little
  // more. After any end but kAnswered the helper cannot be asked again.
  Outcome Ask(const sizing::Question& question, SteadyTime until = SteadyTime::max());

  // Kills it: whoever asks gets kKilled. Thread-safe.
  void Kill();

  pid_t pid() const { return pid_; }

 private:
  SizerProcess(pid_t pid, FileDescriptor socket, const SizingLimits& limits);
  // Fills in `outcome`'s answer and what it did last; an error: it did not answer.
  absl::Status Exchange(const sizing::Question& question, SteadyTime deadline, Outcome& outcome);
  // Waits for its end and returns the wait status; nullopt when it does not end within a second.
  std::optional<int> Reap();

  const pid_t pid_;
  const FileDescriptor pidfd_;
  const FileDescriptor socket_;
  const SizingLimits limits_;
  bool reaped_ = false;
};

}  // namespace trainyard
