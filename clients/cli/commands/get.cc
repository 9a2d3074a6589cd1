#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/commands.h"
#include "clients/cli/gang_view.h"
#include "clients/cli/job_view.h"
#include "proto/text/job_file.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct GetOptions {
  std::string job;
  bool as_file = false;
  bool gang = false;
};

// The ranks of the newest attempt. None: it was never placed, or the server is of before.
absl::StatusOr<v1::Gang> GangOf(Client& client, const std::string& job) {
  v1::GetGangRequest request;
  request.set_name(job);
  absl::StatusOr<v1::Gang> gang = client.GetGang(request);
  if (absl::IsUnimplemented(gang.status()) || absl::IsNotFound(gang.status())) return v1::Gang();
  return gang;
}

absl::StatusOr<int> GetGang(Session& session, Client& client, const std::string& job) {
  v1::GetGangRequest request;
  request.set_name(job);
  TY_ASSIGN_OR_RETURN(const v1::Gang gang, client.GetGang(request));
  if (!session.WriteForPrograms(gang)) {
    session.out().Write(RenderGang(session.terminal(), gang, session.wide(), absl::Now()));
  }
  return kExitOk;
}

// What a user would have to write to submit the same job again.
v1::Job AsFile(const v1::Job& job) {
  v1::Job file;
  *file.mutable_labels() = job.labels();
  file.set_priority(job.priority());
  *file.mutable_spec() = job.spec();
  return file;
}

absl::StatusOr<int> Get(Session& session, const GetOptions& options) {
  v1::GetJobRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_name(), session.JobName(options.job));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  if (options.gang) return GetGang(session, *client, request.name());
  TY_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(request));
  if (options.as_file) {
    session.out().Write(ToYaml(AsFile(job)));
    return kExitOk;
  }
  if (session.WriteForPrograms(job)) return kExitOk;
  std::string text = RenderJob(session.terminal(), job, absl::Now());
  if (job.attempt() > 0) {
    TY_ASSIGN_OR_RETURN(const v1::Gang gang, GangOf(*client, job.name()));
    if (gang.ranks_size() > 0) {
      absl::StrAppend(&text, "\n",
                      RenderGang(session.terminal(), gang, session.wide(), absl::Now()));
    }
  }
  session.out().Write(text);
  return kExitOk;
}

}  // namespace

void AddGet(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("get", "Show a job");
  auto options = std::make_shared<GetOptions>();  // lives as long as the command's body
  command->add_option("JOB", options->job, "Id or full name of the job")->required();
  command->add_flag("--as-file", options->as_file, "As a job file that can be submitted again");
  command->add_flag("--gang", options->gang,
                    "Only where its ranks run; with -o wide a line for each, -o json for programs");
  session.SetBody(command, [&session, options] { return Get(session, *options); });
}

}  // namespace trainyard::cli
