#include "clients/cli/job_action.h"

#include "absl/strings/str_cat.h"
#include "clients/cli/format.h"
#include "clients/cli/progress.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

using Act = std::function<absl::StatusOr<v1::Job>(Client&, const std::string&)>;

std::string Describe(const Terminal& terminal, const v1::Job& job) {
  const std::string id = LastSegment(job.name());
  if (job.state() == v1::JOB_STATE_UNSPECIFIED) return absl::StrCat(id, " deleted\n");
  const std::string& why = job.reason().message();
  return absl::StrCat(id, " ", PaintedState(terminal, job.state()), why.empty() ? "" : ": ", why,
                      "\n");
}

absl::StatusOr<v1::Job> ActOnOne(Session& session, const std::string& text, const Act& act) {
  TY_ASSIGN_OR_RETURN(const std::string name, session.JobName(text));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  return act(*client, name);
}

int ActOnAll(Session& session, const std::vector<std::string>& names, const Act& act) {
  int first_error = kExitOk;
  for (const std::string& text : names) {
    const absl::StatusOr<v1::Job> job = ActOnOne(session, text, act);
    if (!job.ok()) {
      const int code = session.Tell(job.status());
      if (first_error == kExitOk) first_error = code;
    } else if (!session.WriteForPrograms(*job)) {
      session.out().Write(Describe(session.terminal(), *job));
    }
  }
  return first_error;
}

}  // namespace

CLI::App* AddJobAction(CLI::App& root, Session& session, const std::string& command,
                       const std::string& help, Act act) {
  CLI::App* sub = root.add_subcommand(command, help);
  auto names = std::make_shared<std::vector<std::string>>();  // lives as long as the command's body
  sub->add_option("JOB", *names, "Ids or full names of jobs")->required();
  session.SetBody(
      sub, [&session, names, act = std::move(act)] { return ActOnAll(session, *names, act); });
  return sub;
}

}  // namespace trainyard::cli
