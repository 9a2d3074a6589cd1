#include <algorithm>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "clients/cli/commands.h"
#include "clients/cli/format.h"
#include "clients/cli/option_checks.h"
#include "clients/cli/rank_list.h"
#include "clients/cpp/job_watcher.h"
#include "clients/cpp/log_follower.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct LogsOptions {
  std::string job;
  int64_t attempt = 0;
  std::string ranks = "0";
  int64_t tail_kib = 0;  // 0: as many as suit the number of ranks
  bool follow = false;
};

constexpr absl::Duration kPatience = absl::Minutes(10);
constexpr int64_t kTail = 64, kTailOfEach = 16;  // KiB
constexpr size_t kMostFollowed = 64;             // ranks, each by a thread and a stream of its own

// Waits until the job has an attempt after `attempt`, and returns its number; 0 when it ended
// without one.
absl::StatusOr<int64_t> WaitForAttempt(Client& client, const std::string& name, int64_t attempt,
                                       Stop& stop) {
  JobWatcher watcher(client, name, {});
  int64_t found = 0;
  JobWatcher::Handlers handlers;
  handlers.on_item = [&](const v1::FeedItem& item) {
    if (item.has_attempt_started() && item.attempt() > attempt) found = item.attempt();
    return found == 0;
  };
  const absl::StatusOr<v1::Job> end = watcher.Run(handlers, stop);
  if (found > 0) return found;
  if (!end.ok()) return end.status();
  return 0;
}

// Prints what ranks printed, each piece at once. Thread-safe.
class Output {
 public:
  Output(Session& session, bool several) : session_(session), several_(several) {}

  // `text`: whole lines if there are several ranks.
  void Print(const std::string& text) {
    absl::MutexLock lock(&mu_);
    if (!session_.terminal().interactive) return session_.out().Write(text);
    // A character may be cut in two: its beginning waits for the rest.
    rest_ += text;
    const size_t whole = several_ ? rest_.size() : rest_.size() - UnfinishedBytes(rest_);
    session_.out().Write(EscapedLines(absl::string_view(rest_).substr(0, whole)));
    rest_.erase(0, whole);
  }

  void Finish() {
    absl::MutexLock lock(&mu_);
    session_.out().Write(EscapedLines(rest_));
    rest_.clear();
  }

  void Note(int rank, const std::string& text) {
    absl::MutexLock lock(&mu_);
    session_.err().Write(absl::StrCat(several_ ? absl::StrCat("[", rank, "] ") : "", text, "\n"));
  }

  bool several() const { return several_; }

 private:
  Session& session_;
  const bool several_;
  absl::Mutex mu_;
  std::string rest_ ABSL_GUARDED_BY(mu_);
};

struct Copied {
  absl::Status status;
  int64_t attempt = 0;  // whose log it was; 0: nothing was read
};

// Copies the log of one rank of one attempt.
Copied Copy(Client& client, const v1::TailLogsRequest& request, Output& output, Stop& stop) {
  LogFollower follower(client, request, kPatience);
  LogFollower::Handlers handlers;
  RankLines lines(request.rank());
  bool printed = false;
  handlers.on_data = [&](const std::string& data) {
    printed = true;
    output.Print(output.several() ? lines.Add(data) : data);
  };
  handlers.on_missing = [&](int64_t bytes) {
    output.Note(request.rank(),
                absl::StrCat("[", FormatBytes(bytes), " of the log were rotated away]"));
  };
  const absl::Status status = follower.Run(handlers, stop);
  if (output.several()) output.Print(lines.Rest());
  output.Finish();
  if (status.ok() && !printed) output.Note(request.rank(), "(the rank printed nothing)");
  return {.status = status, .attempt = follower.attempt()};
}

// One rank after the other, or at once those of which more is to come; a rank whose log cannot be
// read is named, and the others are copied all the same. The first failure counts.
Copied CopyRanks(Client& client, const v1::TailLogsRequest& request, const std::vector<int>& ranks,
                 Output& output, Stop& stop) {
  std::vector<Copied> copied(ranks.size());
  const auto copy = [&](size_t i) {
    v1::TailLogsRequest of_rank = request;
    of_rank.set_rank(ranks[i]);
    copied[i] = Copy(client, of_rank, output, stop);
    if (!copied[i].status.ok() && !stop.requested() && output.several()) {
      output.Note(ranks[i], EscapedLine(copied[i].status.message()));
    }
  };
  if (request.follow()) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) threads.emplace_back(copy, i);
    for (std::thread& thread : threads) thread.join();
  } else {
    for (size_t i = 0; i < ranks.size() && !stop.requested(); ++i) copy(i);
  }
  Copied all;
  for (const Copied& one : copied) {
    all.status.Update(one.status);
    all.attempt = std::max(all.attempt, one.attempt);
  }
  return all;
}

// The ranks that the user wants to see of the attempt that `request` names, which is its number
// from then on. One that is named alone needs no look at the gang, which a server of before does
// not show.
absl::StatusOr<std::vector<int>> ChooseRanks(Client& client, const RankList& list,
                                             v1::TailLogsRequest& request) {
  if (!list.all && list.ranks.size() == 1) return list.ranks;
  v1::GetGangRequest gang_request;
  gang_request.set_name(request.job());
  gang_request.set_attempt(request.attempt());
  TY_ASSIGN_OR_RETURN(const v1::Gang gang, client.GetGang(gang_request));
  TY_ASSIGN_OR_RETURN(std::vector<int> ranks, RanksOf(list, gang.ranks_size()));
  request.set_attempt(gang.attempt());
  if (request.follow() && ranks.size() > kMostFollowed) {
    return absl::InvalidArgumentError(absl::StrCat("--rank: found ", ranks.size(),
                                                   " ranks, and --follow takes at most ",
                                                   kMostFollowed, ": name some, as in 0-63"));
  }
  return ranks;
}

absl::StatusOr<int> Logs(Session& session, const LogsOptions& options) {
  Stop stop;
  const Interrupt::Scope scope(session.interrupt(), stop);
  TY_ASSIGN_OR_RETURN(const RankList list, ParseRankList(options.ranks));
  const bool several = list.all || list.ranks.size() > 1;
  v1::TailLogsRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_job(), session.JobName(options.job));
  const int64_t kib = options.tail_kib > 0 ? options.tail_kib : several ? kTailOfEach : kTail;
  request.set_last_bytes(kib << 10);
  request.set_follow(options.follow);
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  Output output(session, several);
  const bool every_attempt = options.follow && options.attempt == 0;
  int64_t attempt = 0;
  while (true) {
    if (every_attempt) {
      TY_ASSIGN_OR_RETURN(attempt, WaitForAttempt(*client, request.job(), attempt, stop));
      if (attempt == 0) return kExitOk;
    }
    request.set_attempt(options.attempt);
    TY_ASSIGN_OR_RETURN(const std::vector<int> ranks, ChooseRanks(*client, list, request));
    const Copied copied = CopyRanks(*client, request, ranks, output, stop);
    if (stop.requested()) return kExitInterrupted;
    TY_RETURN_IF_ERROR(copied.status);
    if (!every_attempt) return kExitOk;
    attempt = std::max({attempt, copied.attempt, request.attempt()});
  }
}

}  // namespace

void AddLogs(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand(
      "logs",
      "Show what a rank printed: on a terminal with control characters escaped, into a file or "
      "a pipe byte by byte");
  auto options = std::make_shared<LogsOptions>();  // lives as long as the command's body
  command->add_option("JOB", options->job, "Id or full name of the job")->required();
  command->add_flag("-f,--follow", options->follow, "Go on until the job ends");
  command->add_option("--rank", options->ranks,
                      "Rank (default 0), ranks as in 0,4-7, or all: then each line begins with its "
                      "rank, as in [3]");
  command->add_option("--attempt", options->attempt, "Attempt (default: the newest)")
      ->check(AtLeast(0));
  command
      ->add_option("--tail", options->tail_kib,
                   "Start so many KiB from the end of each log (default 64; of several 16)")
      ->check(CLI::Range(1, 16384));
  session.SetBody(command, [&session, options] { return Logs(session, *options); });
}

}  // namespace trainyard::cli
