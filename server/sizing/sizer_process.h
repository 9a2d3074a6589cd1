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

// One helper, seen from the server. One question at a time; End may be called meanwhile.
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
    kCrashed,  // by a signal of its own, or by leaving
  };
  struct Outcome {
    End end = End::kAnswered;
    absl::StatusOr<SizingAnswer> answer = absl::UnknownError("no answer");
    std::string file;  // that it looked at last; empty: none
    std::string how;   // it crashed: "signal 11 (Segmentation fault)"
  };

  // Within the time of the limits, or until `until` if that is sooner, and a little more. After
  // anything but kAnswered there is nothing more to ask.
  Outcome Ask(const SizingQuestion& question, SteadyTime until = SteadyTime::max());

  // Kills it: whoever asks gets kKilled. Thread-safe.
  void Kill();

  pid_t pid() const { return pid_; }

 private:
  SizerProcess(pid_t pid, FileDescriptor socket, const SizingLimits& limits);
  absl::StatusOr<absl::StatusOr<SizingAnswer>> Exchange(const SizingQuestion& question,
                                                        SteadyTime deadline, std::string& file);
  // The wait status, once it has ended; nullopt when it does not within a second.
  std::optional<int> Reap();

  const pid_t pid_;
  const FileDescriptor pidfd_;
  const FileDescriptor socket_;
  const SizingLimits limits_;
  bool reaped_ = false;
};

}  // namespace trainyard
