#include "absl/strings/str_cat.h"
#include "clients/cli/commands.h"
#include "clients/cli/format.h"
#include "clients/cli/option_checks.h"
#include "clients/cpp/job_watcher.h"
#include "clients/cpp/log_follower.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct LogsOptions {
  std::string job;
  int64_t attempt = 0;
  int rank = 0;
  int64_t tail_kib = 64;
  bool follow = false;
};

constexpr absl::Duration kPatience = absl::Minutes(10);

// Waits until the job has an attempt after `attempt`; false when it ended without one.
absl::StatusOr<bool> WaitForAttempt(Client& client, const std::string& name, int64_t attempt,
                                    Stop& stop) {
  JobWatcher watcher(client, name, {});
  bool found = false;
  JobWatcher::Handlers handlers;
  handlers.on_item = [&](const v1::FeedItem& item) {
    found = item.has_attempt_started() && item.attempt() > attempt;
    return !found;
  };
  const absl::StatusOr<v1::Job> end = watcher.Run(handlers, stop);
  if (found) return true;
  if (!end.ok()) return end.status();
  return false;
}

// Copies the log of one attempt to standard output, and sets `attempt` to that attempt's number.
absl::Status Copy(Session& session, Client& client, const v1::TailLogsRequest& request,
                  int64_t& attempt, Stop& stop) {
  LogFollower follower(client, request, kPatience);
  LogFollower::Handlers handlers;
  bool printed = false;
  std::string rest;
  handlers.on_data = [&](const std::string& data) {
    printed = true;
    if (!session.terminal().interactive) return session.out().Write(data);
    // A character may be cut in two: its beginning waits for the rest.
    rest += data;
    const size_t whole = rest.size() - UnfinishedBytes(rest);
    session.out().Write(EscapedLines(absl::string_view(rest).substr(0, whole)));
    rest.erase(0, whole);
  };
  handlers.on_missing = [&](int64_t bytes) {
    session.err().Write(absl::StrCat("[", FormatBytes(bytes), " of the log were rotated away]\n"));
  };
  const absl::Status status = follower.Run(handlers, stop);
  if (!rest.empty()) session.out().Write(EscapedLines(rest));
  if (follower.attempt() > 0) attempt = follower.attempt();
  if (status.ok() && !printed) session.err().Write("(the rank printed nothing)\n");
  return status;
}

absl::StatusOr<int> Logs(Session& session, const LogsOptions& options) {
  Stop stop;
  const Interrupt::Scope scope(session.interrupt(), stop);
  v1::TailLogsRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_job(), session.JobName(options.job));
  request.set_attempt(options.attempt);
  request.set_rank(options.rank);
  request.set_last_bytes(options.tail_kib << 10);
  request.set_follow(options.follow);
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  const bool every_attempt = options.follow && options.attempt == 0;
  int64_t attempt = 0;
  while (true) {
    if (every_attempt) {
      TY_ASSIGN_OR_RETURN(const bool more, WaitForAttempt(*client, request.job(), attempt, stop));
      if (!more) return kExitOk;
      request.set_attempt(0);
    }
    const absl::Status status = Copy(session, *client, request, attempt, stop);
    if (stop.requested()) return kExitInterrupted;
    TY_RETURN_IF_ERROR(status);
    if (!every_attempt) return kExitOk;
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
  command->add_option("--rank", options->rank, "Rank (default 0)")->check(AtLeast(0));
  command->add_option("--attempt", options->attempt, "Attempt (default: the newest)")
      ->check(AtLeast(0));
  command->add_option("--tail", options->tail_kib, "Start so many KiB from the end (default 64)")
      ->check(CLI::Range(1, 16384));
  session.SetBody(command, [&session, options] { return Logs(session, *options); });
}

}  // namespace trainyard::cli
