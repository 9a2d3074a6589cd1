#include "executor/agent/ask_arithmetic.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "executor/agent/process.h"
#include "executor/agent/warm_workers.h"
#include "executor/run/plain_file.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// Time after which a killed process is left to itself.
constexpr absl::Duration kReaping = absl::Seconds(1);
// How often is looked whether all of a process that ended is gone.
constexpr int kLookMs = 10;
constexpr int64_t kMostOutput = 64 << 10;  // bytes that are read of what it printed

// What the process ended with, or nullopt if it did not end in time.
std::optional<ExitStatus> AwaitEnd(Process& process, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  std::optional<ExitStatus> ended = process.TryReap();
  while (!ended && absl::Now() < deadline) {
    pollfd end = {.fd = process.pidfd(), .events = POLLIN, .revents = 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    poll(&end, 1, process.Ended() ? 0 : static_cast<int>(left) + 1);
    ended = process.TryReap();
    if (!ended && process.Ended()) poll(nullptr, 0, kLookMs);
  }
  return ended;
}

// The last line of `output`: warnings may stand before it.
std::string LastLine(const std::string& output) {
  const std::vector<std::string> lines = absl::StrSplit(absl::StripAsciiWhitespace(output), '\n');
  return lines.back();
}

}  // namespace

absl::StatusOr<Arithmetic> AskArithmetic(const std::string& worker, const std::string& device,
                                         absl::Duration patience) {
  const FileDescriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const FileDescriptor output(memfd_create("arithmetic", MFD_CLOEXEC));
  if (!input.valid() || !output.valid()) return absl::InternalError("no descriptor is left");
  TY_ASSIGN_OR_RETURN(
      Process process,
      Process::Spawn({.program = worker,
                      .arguments = {"arithmetic", "--device", device},
                      .environment = WorkerEnvironment(environ),
                      .folder = "/",
                      .stdin_fd = input.get(),
                      .output_path = absl::StrCat("/proc/self/fd/", output.get())}));
  const std::optional<ExitStatus> ended = AwaitEnd(process, patience);
  if (!ended) {
    process.KillGroup();
    AwaitEnd(process, kReaping);
    return absl::DeadlineExceededError(
        absl::StrCat(worker, " did not tell within ", absl::FormatDuration(patience)));
  }
  const std::string line =
      LastLine(run::ReadAt(output.get(), 0, kMostOutput, "output").value_or(""));
  if (ended->code != 0 || ended->signal != 0) {
    return absl::UnavailableError(
        absl::StrCat(worker, " ended with ", ended->signal != 0 ? "signal " : "exit code ",
                     ended->signal != 0 ? ended->signal : ended->code, ": ", line));
  }
  Arithmetic arithmetic = ArithmeticFromText(line);
  if (arithmetic.empty()) return absl::UnavailableError(absl::StrCat(worker, " told '", line, "'"));
  return arithmetic;
}

}  // namespace trainyard
