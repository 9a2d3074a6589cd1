#include "storage/records/rank_exit.h"

#include <csignal>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

// Exit codes of trainyard-worker (executor/run/run_directory.h; a test compares), for a worker that
// left without reporting more than that.
struct ExitMeaning {
  int code;
  const char* category;
  bool retryable;
  const char* words;
};
constexpr ExitMeaning kExitMeanings[] = {
    {64, "USER", false, "a wrong spec or command line, or a field that is not built yet"},
    {65, "USER", false, "data that is missing or malformed"},
    {70, "INTERNAL", true, "a defect"},
    {71, "DEVICE", true, "a device fault, or device memory used up"},
    {74, "STORAGE", true, "a checkpoint that could not be written or read, or a disk that failed"},
    {76, "NUMERIC", false, "a loss or gradient that is NaN or infinite"},
    {77, kPeerCategory, true, "the failure of another rank, or of the link to it"},
};

std::string WithEvidence(std::string message, const RankExited& exited) {
  const std::string evidence = CleanText(exited.evidence, 4096);
  if (!evidence.empty()) absl::StrAppend(&message, "; its log ends:\n", evidence);
  return message;
}

}  // namespace

FailureRecord FailureOfExit(const RankRecord& rank, const RankExited& exited) {
  FailureRecord failure{
      .category = "LOST", .retryable = true, .rank = rank.id.rank, .node = rank.node};
  std::string message;
  if (exited.lost) {
    message = "the process vanished while no agent watched it";
  } else if (exited.signal != 0) {
    const char* name = sigabbrev_np(exited.signal);
    message = absl::StrCat("the process was ended by signal ", exited.signal,
                           name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
  } else {
    failure.category = "INTERNAL";
    message = absl::StrCat("the process left with exit code ", exited.exit_code,
                           " without having finished");
    for (const ExitMeaning& meaning : kExitMeanings) {
      if (meaning.code != exited.exit_code) continue;
      failure.category = meaning.category;
      failure.retryable = meaning.retryable;
      message =
          absl::StrCat("the process left with exit code ", exited.exit_code, ": ", meaning.words);
    }
  }
  failure.message = WithEvidence(std::move(message), exited);
  return failure;
}

}  // namespace trainyard
