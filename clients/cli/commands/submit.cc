#include <algorithm>
#include <utility>
#include <vector>

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
  std::vector<std::string> files;
  std::vector<std::string> sets;
  std::string job_id;
  std::string request_id;
  bool validate_only = false;
  bool follow = false;
};

void Show(Session& session, const v1::Job& job, const SubmitOptions& options) {
  const std::string id = LastSegment(job.name());
  if (session.wants_messages() && options.follow) return;  // what follows is in that form
  if (session.WriteForPrograms(job)) return;
  if (options.validate_only) {
    session.out().Write(absl::StrCat("the job is valid\n", RenderPlan(session.terminal(), job)));
  } else {
    session.out().Write(absl::StrCat("submitted ", id, "\n"));
    if (!options.follow && session.terminal().interactive) {
      session.out().Write(absl::StrCat("follow it with `trainyard watch ", id, "`\n"));
    }
  }
}

v1::SubmitJobRequest RequestFor(v1::Job job, const SubmitOptions& options) {
  v1::SubmitJobRequest request;
  if (!options.job_id.empty()) job.set_job_id(options.job_id);
  *request.mutable_job() = std::move(job);
  request.set_request_id(options.request_id);
  request.set_validate_only(options.validate_only);
  return request;
}

absl::StatusOr<int> SubmitOne(Session& session, v1::Job job, const SubmitOptions& options) {
  v1::SubmitJobRequest request = RequestFor(std::move(job), options);
  TY_ASSIGN_OR_RETURN(*request.mutable_parent(), session.Parent());
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::Job submitted, client->SubmitJob(std::move(request)));
  Show(session, submitted, options);
  if (!options.follow || options.validate_only) return kExitOk;
  return FollowJob(session, submitted.name(), 0);
}

absl::Status CheckForSeveral(const SubmitOptions& options, size_t jobs) {
  const char* option = nullptr;
  if (!options.job_id.empty()) option = "--name";
  if (!options.request_id.empty()) option = "--request-id";
  if (options.follow) option = "--follow";
  if (option == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is for one job, and these are ", jobs,
                   options.follow ? "; submit them without it and `trainyard watch` one of them"
                                  : "; write job_id into the files, or submit them one by one"));
}

void ShowOneOfMany(Session& session, const v1::Job& job, const SubmitOptions& options) {
  const std::string id = LastSegment(job.name());
  session.out().Write(options.validate_only ? absl::StrCat(id, " is valid\n")
                                            : absl::StrCat("submitted ", id, "\n"));
}

// Prints the jobs on standard output and the refusals on standard error (only once if all jobs were
// refused alike). Returns the exit code of the first refusal, or 0.
int ShowMany(Session& session, const std::vector<std::string>& places,
             const std::vector<absl::StatusOr<v1::Job>>& answers, const SubmitOptions& options) {
  std::vector<const google::protobuf::Message*> made;
  int code = kExitOk;
  const bool all_alike =
      std::all_of(answers.begin(), answers.end(), [&](const absl::StatusOr<v1::Job>& answer) {
        return !answer.ok() && answer.status() == answers[0].status();
      });
  if (all_alike) return session.Tell(answers[0].status());
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok()) {
      const int own = session.Tell(Annotate(answers[i].status(), places[i]));
      if (code == kExitOk) code = own;
    } else if (session.wants_messages()) {
      made.push_back(&*answers[i]);
    } else if (!session.WriteForPrograms(*answers[i])) {
      ShowOneOfMany(session, *answers[i], options);
    }
  }
  if (session.wants_messages()) session.out().Write(SerializeList(session.format(), made));
  return code;
}

absl::StatusOr<int> SubmitMany(Session& session, std::vector<SourcedJob> jobs,
                               const SubmitOptions& options) {
  TY_RETURN_IF_ERROR(CheckForSeveral(options, jobs.size()));
  std::vector<std::string> places;
  std::vector<v1::SubmitJobRequest> requests;
  for (SourcedJob& sourced : jobs) {
    places.push_back(std::move(sourced.place));
    requests.push_back(RequestFor(std::move(sourced.job), options));
  }
  TY_ASSIGN_OR_RETURN(const std::string parent, session.Parent());
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  return ShowMany(session, places, client->SubmitMany(parent, std::move(requests)), options);
}

absl::StatusOr<int> Submit(Session& session, const SubmitOptions& options) {
  TY_ASSIGN_OR_RETURN(std::vector<SourcedJob> jobs, ReadJobs(options.files, options.sets));
  if (jobs.size() == 1) return SubmitOne(session, std::move(jobs[0].job), options);
  return SubmitMany(session, std::move(jobs), options);
}

}  // namespace

void AddSubmit(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("submit", "Submit job files");
  auto options = std::make_shared<SubmitOptions>();  // lives as long as the command's body
  command
      ->add_option("FILE", options->files,
                   "Job files in YAML, of one job or of several with --- between them, or - for "
                   "standard input. Several jobs go out together: each is submitted or refused for "
                   "itself, and the exit code is that of the first that is refused")
      ->required();
  command->add_option("--set", options->sets, "FIELD=VALUE on top of each job; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--name", options->job_id, "Id of the one job (job_id in the file)");
  command->add_option("--request-id", options->request_id,
                      "The same id with the same job makes one job, however often it is sent");
  command->add_flag("--validate-only", options->validate_only, "Check and plan; submit nothing");
  command->add_flag("-f,--follow", options->follow, "Watch the one job until it ends");
  session.SetBody(command, [&session, options] { return Submit(session, *options); });
}

}  // namespace trainyard::cli
