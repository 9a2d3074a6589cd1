#include <cstdlib>
#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/commands.h"
#include "clients/cli/exit_code.h"
#include "storage/base/suggest.h"

namespace trainyard::cli {
namespace {

void AddCommands(CLI::App& root, Session& session) {
  for (const auto add :
       {AddSubmit,      AddPlan,   AddPs,      AddGet,       AddWatch,  AddLogs,   AddMetrics,
        AddExplain,     AddWait,   AddCancel,  AddPause,     AddResume, AddResize, AddDelete,
        AddCheckpoints, AddSample, AddNode,    AddRetention, AddAdmin,  AddAudit,  AddContext,
        AddLocal,       AddWhoAmI, AddVersion, AddCompletion}) {
    add(root, session);
  }
}

// Unknown options of a subcommand are looked for among the global ones.
void FallThrough(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    command->fallthrough();
    FallThrough(*command);
  }
}

const CLI::App* SubcommandOf(const CLI::App& app, const std::string& name) {
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    if (sub->check_name(name)) return sub;
  }
  return nullptr;
}

// The deepest command that the arguments name, and the first word that is none of its subcommands.
const CLI::App* FindCommand(const CLI::App& root, int argc, char** argv, std::string& stray) {
  const CLI::App* at = &root;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (absl::StartsWith(word, "-")) continue;
    const CLI::App* next = SubcommandOf(*at, word);
    if (next == nullptr) {
      stray = word;
      return at;
    }
    at = next;
  }
  return at;
}

int TellUsage(const CLI::App& root, const CLI::ParseError& error, int argc, char** argv) {
  std::string stray;
  const CLI::App* command = FindCommand(root, argc, argv, stray);
  std::vector<std::string> names;
  for (const CLI::App* sub : command->get_subcommands(nullptr)) {
    const bool is_option_group = sub->get_name().empty();
    if (!is_option_group && !sub->get_group().empty()) names.push_back(sub->get_name());
  }
  std::string path = command == &root ? "" : command->get_name();
  for (const CLI::App* at = command; at != &root && at->get_parent() != &root;) {
    at = at->get_parent();
    path = absl::StrCat(at->get_name(), " ", path);
  }
  const std::string help = absl::StrCat("trainyard ", path, path.empty() ? "" : " ", "--help");
  // A command that works without one of its own, too, has options whose values look like one.
  const bool needs_command = command->get_require_subcommand_min() > 0;
  if (!stray.empty() && !names.empty() && needs_command) {
    std::cerr << "trainyard: no command '" << stray << "'" << DidYouMean(stray, names) << "; see `"
              << help << "`\n";
  } else {
    std::cerr << "trainyard: " << error.what() << "; see `" << help << "`\n";
  }
  return kExitUsage;
}

int Main(int argc, char** argv) {
  // gRPC would tell of each failed connection on stderr, too; Session::Tell does.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  CLI::App root("Trainyard: training as a service.", "trainyard");
  root.require_subcommand(1);
  root.footer(kExitCodeHelp);
  Session session;
  session.AddFlags(root);
  AddCommands(root, session);
  FallThrough(root);
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& help) {  // --help
    return root.exit(help);
  } catch (const CLI::ParseError& error) {
    return TellUsage(root, error, argc, argv);
  }
  return session.exit_code();
}

}  // namespace
}  // namespace trainyard::cli

int main(int argc, char** argv) { return trainyard::cli::Main(argc, argv); }
