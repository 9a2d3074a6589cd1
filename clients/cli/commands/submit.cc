#include "absl/strings/str_cat.h"
#include "clients/cli/commands.h"
#include "clients/cli/follow.h"
#include "clients/cli/format.h"
#include "clients/cli/job_source.h"
#include "clients/cli/job_view.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct SubmitOptions {
  std::string file;
  std::vector<std::string> sets;
  std::string job_id;
  std::string request_id;
  bool validate_only = false;
  bool follow = false;
};

void Show(Session& session, OutputFormat format, const v1::Job& job, const SubmitOptions& options) {
  const std::string id = LastSegment(job.name());
  if (format == OutputFormat::kJson || format == OutputFormat::kYaml) {
    if (!options.follow) session.out().Write(Serialize(format, job));
  } else if (format == OutputFormat::kName) {
    session.out().Write(absl::StrCat(job.name(), "\n"));
  } else if (options.validate_only) {
    session.out().Write(
        absl::StrCat("the job is valid\n", RenderPlan(session.terminal(), job.plan())));
  } else {
    session.out().Write(absl::StrCat("submitted ", id, "\n"));
    if (!options.follow && session.terminal().interactive) {
      session.out().Write(absl::StrCat("follow it with `trainyard watch ", id, "`\n"));
    }
  }
}

absl::StatusOr<int> Submit(Session& session, const SubmitOptions& options) {
  TY_ASSIGN_OR_RETURN(const OutputFormat format, session.Format());
  TY_ASSIGN_OR_RETURN(v1::Job job, ReadJob(options.file, options.sets));
  if (!options.job_id.empty()) job.set_job_id(options.job_id);
  v1::SubmitJobRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_parent(), session.Parent());
  *request.mutable_job() = std::move(job);
  request.set_request_id(options.request_id);
  request.set_validate_only(options.validate_only);
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::Job submitted, client->SubmitJob(std::move(request)));
  Show(session, format, submitted, options);
  if (!options.follow || options.validate_only) return kExitOk;
  return FollowJob(session, submitted.name(), 0);
}

}  // namespace

void AddSubmit(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("submit", "Submit a job file");
  auto options = std::make_shared<SubmitOptions>();  // lives as long as the command's body
  command->add_option("FILE", options->file, "Job file in YAML, or - for standard input")
      ->required();
  command->add_option("--set", options->sets, "FIELD=VALUE on top of the file; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--name", options->job_id, "Id of the job (job_id in the file)");
  command->add_option("--request-id", options->request_id,
                      "The same id with the same job makes one job, however often it is sent");
  command->add_flag("--validate-only", options->validate_only, "Check and plan; submit nothing");
  command->add_flag("-f,--follow", options->follow, "Watch it until it ends");
  session.SetBody(command, [&session, options] { return Submit(session, *options); });
}

}  // namespace trainyard::cli
