#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/commands.h"
#include "clients/cli/format.h"
#include "clients/cli/option_checks.h"
#include "clients/cli/stop_timer.h"
#include "clients/cpp/job_watcher.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct WaitOptions {
  std::string job;
  std::string state = "ended";
  double timeout_seconds = 0;  // 0: for ever
};

// JOB_STATE_UNSPECIFIED stands for any end.
absl::StatusOr<v1::JobState> ParseState(const std::string& text) {
  if (absl::AsciiStrToLower(text) == "ended") return v1::JOB_STATE_UNSPECIFIED;
  v1::JobState state;
  if (v1::JobState_Parse(absl::AsciiStrToUpper(text), &state) &&
      state != v1::JOB_STATE_UNSPECIFIED) {
    return state;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--for: '", text,
                   "' is not a state; expected ended, or one of QUEUED, STARTING, "
                   "RUNNING, SUSPENDED, SUCCEEDED, FAILED, CANCELLED"));
}

// Prints the state of a job that is `wanted`, or ended while the command waited for that; returns
// the exit code.
absl::StatusOr<int> Report(Session& session, const v1::Job& job, v1::JobState wanted) {
  session.out().Write(absl::StrCat(v1::JobState_Name(job.state()), "\n"));
  if (job.state() == wanted) return kExitOk;
  if (wanted != v1::JOB_STATE_UNSPECIFIED) {
    session.err().Write(absl::StrCat(LastSegment(job.name()), " ended as ",
                                     v1::JobState_Name(job.state()), " and will not be ",
                                     v1::JobState_Name(wanted), "\n"));
    return job.state() == v1::SUCCEEDED ? kExitPrecondition : ExitCodeOf(job.state());
  }
  return ExitCodeOf(job.state());
}

absl::StatusOr<int> Wait(Session& session, const WaitOptions& options) {
  Stop stop;
  const Interrupt::Scope scope(session.interrupt(), stop);
  TY_ASSIGN_OR_RETURN(const v1::JobState wanted, ParseState(options.state));
  v1::GetJobRequest get;
  TY_ASSIGN_OR_RETURN(*get.mutable_name(), session.JobName(options.job));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(get));
  if (IsTerminal(job.state()) || job.state() == wanted) return Report(session, job, wanted);
  const StopTimer timer(stop, options.timeout_seconds > 0 ? absl::Seconds(options.timeout_seconds)
                                                          : absl::InfiniteDuration());
  bool reached = false;
  JobWatcher watcher(*client, job.name(), {});
  JobWatcher::Handlers handlers;
  handlers.on_item = [&](const v1::FeedItem& item) {
    // The feed starts with the past; states that the job was in before GetJob do not count.
    reached = item.has_state() && item.state().to() == wanted &&
              TimeOf(item.time()) >= TimeOf(job.update_time());
    return !reached;
  };
  const absl::StatusOr<v1::Job> end = watcher.Run(handlers, stop);
  if (reached) {
    session.out().Write(absl::StrCat(v1::JobState_Name(wanted), "\n"));
    return kExitOk;
  }
  if (end.ok()) return Report(session, *end, wanted);
  if (timer.fired()) {
    return absl::DeadlineExceededError(absl::StrCat(LastSegment(job.name()), " is not yet ",
                                                    options.state, " after ",
                                                    options.timeout_seconds, " s"));
  }
  if (stop.requested()) return kExitInterrupted;
  return end.status();
}

}  // namespace

void AddWait(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("wait", "Wait until a job ended, or reached a state");
  auto options = std::make_shared<WaitOptions>();  // lives as long as the command's body
  command->add_option("JOB", options->job, "Id or full name of the job")->required();
  command->add_option("--for", options->state, "State to wait for (default: ended)");
  command
      ->add_option("--timeout", options->timeout_seconds,
                   "Seconds, or 20m and the like; then exit code 7")
      ->transform(Seconds());
  session.SetBody(command, [&session, options] { return Wait(session, *options); });
}

}  // namespace trainyard::cli
