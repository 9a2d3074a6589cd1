#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/commands.h"
#include "clients/cli/programs.h"
#include "storage/base/file.h"
#include "storage/base/spawn.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct SampleOptions {
  std::string job;
  std::string checkpoint = "latest";
  std::vector<std::string> arguments;  // for the worker
};

// Folder of a checkpoint: given as a path, or looked up.
absl::StatusOr<std::string> Folder(Session& session, const SampleOptions& options) {
  if (absl::StrContains(options.job, '/') && !absl::StartsWith(options.job, "projects/")) {
    return options.job;
  }
  TY_ASSIGN_OR_RETURN(const std::string name, session.JobName(options.job));
  v1::GetCheckpointRequest request;
  request.set_name(absl::StrCat(name, "/checkpoints/", options.checkpoint));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, client->GetCheckpoint(request));
  if (!absl::StartsWith(checkpoint.uri(), "file://")) {
    return absl::UnimplementedError(
        absl::StrCat("sampling from ", checkpoint.uri(), " is not built yet; only file:// is"));
  }
  return checkpoint.uri().substr(7);
}

// Turns this process into the worker: the model runs there, and its exit code is ours.
absl::StatusOr<int> Sample(Session& session, const SampleOptions& options) {
  TY_ASSIGN_OR_RETURN(const std::string folder, Folder(session, options));
  TY_ASSIGN_OR_RETURN(const std::string worker, FindProgram("trainyard-worker"));
  std::vector<std::string> words = {worker, "sample", "--checkpoint", folder};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  session.Disconnect();
  execv(worker.c_str(), PointersTo(words).data());
  return ErrnoStatus(errno, worker);
}

}  // namespace

void AddSample(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("sample", "Generate text from a checkpoint of a language model");
  auto options = std::make_shared<SampleOptions>();  // lives as long as the command's body
  command->add_option("JOB", options->job, "Id or full name of the job, or a checkpoint's folder")
      ->required();
  command->add_option("--checkpoint", options->checkpoint,
                      "Step, latest (the default) or best (of checkpoint.best)");
  const std::pair<const char*, const char*> passed[] = {
      {"--prompt", "Text to go on from"},
      {"--tokens", "How many tokens to generate"},
      {"--temperature", "0 takes the likeliest token"},
      {"--top-k", "Choose among so many"},
      {"--top-p", "Choose among the likeliest that together have this probability"},
      {"--seed", "The same seed gives the same text"}};
  for (const auto& [flag, help] : passed) {
    command->add_option_function<std::string>(
        flag,
        [options, flag = std::string(flag)](const std::string& value) {
          options->arguments.push_back(flag);
          options->arguments.push_back(value);
        },
        help);
  }
  session.SetBody(command, [&session, options] { return Sample(session, *options); });
}

}  // namespace trainyard::cli
