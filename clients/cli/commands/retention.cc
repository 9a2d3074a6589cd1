#include <optional>

#include "absl/strings/str_cat.h"
#include "clients/cli/commands.h"
#include "clients/cli/option_checks.h"
#include "clients/cli/table.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct RetentionFlags {
  std::optional<double> ended_jobs;  // seconds
  std::optional<double> gone_nodes;
};

std::string SpanText(const google::protobuf::Duration& span) {
  constexpr int64_t kDay = 24 * 60 * 60;
  if (span.seconds() % kDay != 0) return absl::FormatDuration(absl::Seconds(span.seconds()));
  const int64_t days = span.seconds() / kDay;
  return absl::StrCat(days, days == 1 ? " day" : " days");
}

absl::StatusOr<int> Retain(Session& session, const RetentionFlags& flags) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::SetRetentionRequest request;
  v1::Retention& wanted = *request.mutable_retention();
  if (flags.ended_jobs.has_value()) {
    wanted.mutable_ended_jobs()->set_seconds(static_cast<int64_t>(*flags.ended_jobs));
  }
  if (flags.gone_nodes.has_value()) {
    wanted.mutable_gone_nodes()->set_seconds(static_cast<int64_t>(*flags.gone_nodes));
  }
  const bool change = flags.ended_jobs.has_value() || flags.gone_nodes.has_value();
  TY_ASSIGN_OR_RETURN(const v1::Retention kept,
                      change ? client->SetRetention(request) : client->GetRetention());
  if (!session.WriteForPrograms(kept)) {
    session.out().Write(RenderFields(
        session.terminal(),
        {{"ended jobs", absl::StrCat(SpanText(kept.ended_jobs()), " after the end, by months")},
         {"gone nodes", absl::StrCat(SpanText(kept.gone_nodes()), " after the last heartbeat")},
         {"checkpoint files", "stay"}}));
  }
  return kExitOk;
}

}  // namespace

void AddRetention(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand(
      "retention", "Show or change how long records are kept; checkpoint files stay");
  auto flags = std::make_shared<RetentionFlags>();  // lives as long as the command's body
  command->add_option("--ended-jobs", flags->ended_jobs, "How long after their end, such as 90d")
      ->transform(Seconds());
  command->add_option("--gone-nodes", flags->gone_nodes, "How long after their last heartbeat")
      ->transform(Seconds());
  session.SetBody(command, [&session, flags] { return Retain(session, *flags); });
}

}  // namespace trainyard::cli
