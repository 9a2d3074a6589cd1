// trainyard-sizer: looks at the files of submitted jobs, and plans them, for a server, which starts
// and ends it.
//   trainyard-sizer MEMORY_BYTES SECONDS   with a socket as standard input (server/sizing/frames.h)
// Ends by itself when the server is gone, when memory runs out (kOutOfMemory), and after SECONDS
// with one question.

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "executor/data/files/regular_file.h"
#include "executor/facts/facts_message.h"
#include "server/sizing/file_identity.h"
#include "server/sizing/frames.h"
#include "server/sizing/limits.h"
#include "server/sizing/plan_job.h"
#include "server/sizing/size_job.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kSocket = STDIN_FILENO;

// Limits private writable memory, wherever it comes from. Forbids core files, which would hold data
// of users.
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

// The files that were looked at for the answer under way.
std::vector<std::string>& LookedAt() {
  static std::vector<std::string>& paths = *new std::vector<std::string>;
  return paths;
}

void TellOfOpen(const std::string& path) {
  LookedAt().push_back(path);
  sizing::Answer next;
  next.set_looks_at(path);
  Send(kSocket, next).IgnoreError();
}

void TellOfPlanning() {
  sizing::Answer next;
  next.set_plans(true);
  Send(kSocket, next).IgnoreError();
}

bool LookedAtNoOthers(const std::vector<std::string>& paths) {
  const std::set<std::string> named(paths.begin(), paths.end());
  return std::all_of(LookedAt().begin(), LookedAt().end(),
                     [&](const std::string& path) { return named.count(path) > 0; });
}

sizing::Answer AnswerOf(Sizing sizing) {
  sizing::Answer answer;
  *answer.mutable_sizing()->mutable_facts() = facts::ToMessage(sizing.facts);
  *answer.mutable_sizing()->mutable_summary() = std::move(sizing.summary);
  return answer;
}

absl::StatusOr<sizing::Answer> Size(const v1::JobSpec& spec, const sizing::Question::Size& asks) {
  LookedAt().clear();
  if (asks.spec_alone() || asks.has_facts()) {
    FactsFrom from{.spec_alone = asks.spec_alone()};
    if (asks.has_facts()) {
      TY_ASSIGN_OR_RETURN(from.found, facts::FromMessage(asks.facts()));
    }
    TY_ASSIGN_OR_RETURN(Sizing sizing, SizeJob(spec, from, TellOfPlanning));
    sizing::Answer answer = AnswerOf(std::move(sizing));
    answer.mutable_sizing()->set_identity(kNoFiles);
    return answer;
  }
  const std::optional<std::vector<std::string>> files = FilesNamedBy(spec);
  const auto identity = [&] { return files.has_value() ? IdentityOf(*files) : std::nullopt; };
  const std::optional<std::string> before = identity();
  sizing::Answer answer;
  if (before.has_value() && *before == asks.identity()) {
    answer.set_unchanged(true);
    return answer;
  }
  TY_ASSIGN_OR_RETURN(Sizing sizing, SizeJob(spec, {}, TellOfPlanning));
  answer = AnswerOf(std::move(sizing));
  // What was read is known only if the files stayed the same all the time.
  const bool same = before.has_value() && LookedAtNoOthers(*files) && identity() == before;
  if (same) answer.mutable_sizing()->set_identity(*before);
  return answer;
}

absl::StatusOr<sizing::Answer> AnswerTo(const sizing::Question& question) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(question.spec())) {
    return absl::InternalError("the spec cannot be read again");
  }
  if (question.has_size()) return Size(spec, question.size());
  TellOfPlanning();
  return PlanJob(spec, question);
}

int Serve(int seconds) {
  for (;;) {
    sizing::Question question;
    if (!Receive(kSocket, question).ok()) return 0;  // the server is gone
    EndAfter(seconds);
    absl::StatusOr<sizing::Answer> answer = AnswerTo(question);
    if (answer.ok() && answer->ByteSizeLong() > kLargestFrame) {
      answer = absl::InvalidArgumentError("spec: its plan is too large to be told");
    }
    const absl::Status sent = Send(kSocket, answer.ok() ? *answer : ErrorAnswer(answer.status()));
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
