#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "clients/cli/commands.h"
#include "clients/cli/format.h"
#include "clients/cli/progress.h"
#include "clients/cli/shown.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

std::string Render(const Terminal& terminal, const v1::ExplainJobResponse& raw) {
  const v1::ExplainJobResponse answer = Shown(raw);
  const v1::Job& job = answer.job();
  std::string out =
      absl::StrCat(LastSegment(job.name()), " is ", PaintedState(terminal, job.state()), ": ",
                   Indented(answer.reason().message()), " (", answer.reason().code(), ")\n");
  if (answer.queue_position() > 0) {
    absl::StrAppend(&out, "place in the queue: ", answer.queue_position());
    if (!answer.ahead().empty()) {
      absl::StrAppend(&out, ", behind ",
                      absl::StrJoin(answer.ahead(), ", ", [](std::string* to, const auto& name) {
                        absl::StrAppend(to, LastSegment(name));
                      }));
    }
    out += "\n";
  }
  if (answer.has_earliest_start()) {
    const absl::Time start = TimeOf(answer.earliest_start());
    absl::StrAppend(&out, "may start at ", FormatWhen(start), ", in ",
                    FormatClock(start - absl::Now()), "\n");
  }
  const char* const bullet = terminal.unicode ? "• " : "- ";
  for (const std::string& detail : answer.details())
    absl::StrAppend(&out, "  ", bullet, detail, "\n");
  if (!answer.suggestions().empty()) {
    absl::StrAppend(&out, Paint(terminal, Color::kBold, "what helps:"), "\n");
    for (const std::string& text : answer.suggestions())
      absl::StrAppend(&out, "  ", bullet, text, "\n");
  }
  return out;
}

absl::StatusOr<int> Explain(Session& session, const std::string& job) {
  v1::ExplainJobRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_name(), session.JobName(job));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::ExplainJobResponse answer, client->ExplainJob(request));
  if (!session.WriteForPrograms(answer)) session.out().Write(Render(session.terminal(), answer));
  return kExitOk;
}

}  // namespace

void AddExplain(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("explain", "Say why a job waits, or why it failed");
  auto job = std::make_shared<std::string>();  // lives as long as the command's body
  command->add_option("JOB", *job, "Id or full name of the job")->required();
  session.SetBody(command, [&session, job] { return Explain(session, *job); });
}

}  // namespace trainyard::cli
