#include "clients/cli/commands.h"
#include "clients/cli/follow.h"
#include "clients/cli/option_checks.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct WatchOptions {
  std::string job;
  int64_t after = 0;
};

absl::StatusOr<int> Watch(Session& session, const WatchOptions& options) {
  TY_ASSIGN_OR_RETURN(const std::string name, session.JobName(options.job));
  return FollowJob(session, name, options.after);
}

}  // namespace

void AddWatch(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("watch", "Watch a job until it ends; Ctrl-C detaches, the job goes on");
  auto options = std::make_shared<WatchOptions>();  // lives as long as the command's body
  command->add_option("JOB", options->job, "Id or full name of the job")->required();
  command->add_option("--after", options->after, "Only items after this sequence")
      ->check(AtLeast(0));
  session.SetBody(command, [&session, options] { return Watch(session, *options); });
}

}  // namespace trainyard::cli
