#include "clients/cli/commands.h"
#include "clients/cli/job_source.h"
#include "clients/cli/job_view.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct PlanOptions {
  std::string file;
  std::vector<std::string> sets;
};

absl::StatusOr<int> Plan(Session& session, const PlanOptions& options) {
  TY_ASSIGN_OR_RETURN(const OutputFormat format, session.Format());
  v1::SubmitJobRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_job(), ReadJob(options.file, options.sets));
  TY_ASSIGN_OR_RETURN(*request.mutable_parent(), session.Parent());
  request.set_validate_only(true);
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::Job job, client->SubmitJob(std::move(request)));
  session.out().Write(format == OutputFormat::kJson || format == OutputFormat::kYaml
                          ? Serialize(format, job.plan())
                          : RenderPlan(session.terminal(), job));
  return kExitOk;
}

}  // namespace

void AddPlan(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("plan", "What a job would cost: parameters, FLOPs, bytes per slot");
  auto options = std::make_shared<PlanOptions>();  // lives as long as the command's body
  command->add_option("FILE", options->file, "Job file in YAML, or - for standard input")
      ->required();
  command->add_option("--set", options->sets, "FIELD=VALUE on top of the file; may be repeated")
      ->allow_extra_args(false);
  session.SetBody(command, [&session, options] { return Plan(session, *options); });
}

}  // namespace trainyard::cli
