// trainyard-sizer: looks at the files of submitted jobs for a server, which starts and ends it.
//   trainyard-sizer MEMORY_BYTES SECONDS   with a socket as standard input (server/sizing/frames.h)
// Ends by itself when the server is gone, when memory runs out (kOutOfMemory), and after SECONDS
// with one question.

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "absl/strings/numbers.h"
#include "executor/data/regular_file.h"
#include "server/sizing/frames.h"
#include "server/sizing/limits.h"
#include "server/sizing/size_job.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kSocket = STDIN_FILENO;

// Private memory that can be written, wherever it comes from. No core file of a user's data.
void Limit(int64_t memory_bytes) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (TRAINYARD_MEMORY_LIMIT == 0) return;
  const rlimit memory{static_cast<rlim_t>(memory_bytes), static_cast<rlim_t>(memory_bytes)};
  setrlimit(RLIMIT_DATA, &memory);
}

// SIGALRM ends the process after `seconds`, for the case that the server died meanwhile; 0: never.
void EndAfter(int seconds) {
  const itimerval timer{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void TellOfOpen(const std::string& path) {
  SendFrame(kSocket, FrameKind::kOpened, path).IgnoreError();
}

absl::StatusOr<Sizing> Answer(const std::string& spec_bytes) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(spec_bytes))
    return absl::InternalError("the spec cannot be read again");
  return SizeJob(spec);
}

int Serve(int seconds) {
  for (;;) {
    const absl::StatusOr<Frame> question = ReceiveFrame(kSocket);
    if (!question.ok()) return 0;  // the server is gone
    EndAfter(seconds);
    const absl::StatusOr<Sizing> sizing = Answer(question->payload);
    const absl::Status sent =
        sizing.ok() ? SendFrame(kSocket, FrameKind::kSizing, EncodeSizing(*sizing))
                    : SendFrame(kSocket, FrameKind::kError, EncodeError(sizing.status()));
    EndAfter(0);
    if (!sent.ok()) return 0;
  }
}

int Main(int argc, char** argv) {
  int64_t memory_bytes = 0;
  int seconds = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[1], &memory_bytes) ||
      !absl::SimpleAtoi(argv[2], &seconds) || memory_bytes <= 0 || seconds <= 0) {
    std::fputs(
        "trainyard-sizer: trainyard-server starts this program; there is no use of it by hand\n",
        stderr);
    return 2;
  }
  prctl(PR_SET_NAME, "trainyard-sizer");
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  std::set_new_handler([] { _exit(kOutOfMemory); });
  data::ObserveOpens(TellOfOpen);
  Limit(memory_bytes);
  return Serve(seconds);
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) { return trainyard::Main(argc, argv); }
