#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/commands.h"
#include "clients/cli/table.h"
#include "proto/tls/pem_files.h"
#include "storage/base/file.h"
#include "storage/base/printable.h"
#include "storage/base/server_list.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"
#include "storage/base/token.h"

namespace trainyard::cli {
namespace {

absl::StatusOr<int> ListContexts(Session& session) {
  TY_ASSIGN_OR_RETURN(const std::string path, ContextFilePath());
  TY_ASSIGN_OR_RETURN(const ContextFile file, LoadContexts(path));
  if (file.contexts.empty()) {
    session.err().Write("no contexts yet; `trainyard local start` makes one\n");
    return kExitOk;
  }
  Table table({"", "CONTEXT", "SERVER", "PROJECT", "FOLDER"});
  const bool names_only = session.format() == OutputFormat::kName;
  for (const auto& [name, context] : file.contexts) {
    if (names_only) session.out().Write(name + "\n");
    table.Add({name == file.current ? "*" : "", name, context.server, context.project,
               context.directory});
  }
  if (!names_only) session.out().Write(table.Render(session.terminal()));
  return kExitOk;
}

absl::Status NoContext(const std::string& name, const ContextFile& file) {
  std::vector<std::string> names;
  for (const auto& [known, unused] : file.contexts) names.push_back(known);
  return absl::NotFoundError(absl::StrCat("no context '", name, "'", DidYouMean(name, names)));
}

absl::StatusOr<int> Use(Session& session, const std::string& name) {
  TY_RETURN_IF_ERROR(ChangeContexts([&](ContextFile& file) {
    if (file.contexts.count(name) == 0) return NoContext(name, file);
    file.current = name;
    return absl::OkStatus();
  }));
  session.out().Write(absl::StrCat("now using ", name, "\n"));
  return kExitOk;
}

std::string LinkOf(const Context& context) {
  if (context.authorities.empty()) return "clear text";
  if (context.authorities == kSystemAuthorities) return "TLS, by authorities of this machine";
  const absl::StatusOr<CertificateFacts> authority =
      ReadCertificate(context.authorities, "authorities");
  if (!authority.ok()) return EscapedLine(authority.status().message());
  return absl::StrCat("TLS, by ", EscapedLine(authority->subject), " (fingerprint ",
                      authority->fingerprint.substr(0, 16), "…)");
}

// The token itself is never shown.
absl::StatusOr<int> Show(Session& session) {
  TY_ASSIGN_OR_RETURN(const ResolvedContext resolved, session.Resolve());
  const Context& context = resolved.context;
  session.out().Write(RenderFields(
      session.terminal(), {{"context", resolved.name.empty() ? "(none)" : resolved.name},
                           {"server", context.server},
                           {"project", context.project},
                           {"token", context.token.empty() ? "none" : "set"},
                           {"link", LinkOf(context)},
                           {"folder", context.directory.empty() ? "-" : context.directory}}));
  return kExitOk;
}

struct AddOptions {
  std::string name;
  std::vector<std::string> servers;
  std::string token_path;
  std::optional<std::string> ca_path;
  std::string project = "default";
};

absl::StatusOr<int> Add(Session& session, const AddOptions& options) {
  Context context;
  context.server = absl::StrJoin(options.servers, ",");
  TY_RETURN_IF_ERROR(ParseServers(context.server).status());
  context.project = options.project;
  if (!options.token_path.empty()) {
    TY_ASSIGN_OR_RETURN(const std::string token, ReadFile(options.token_path, 4096));
    TY_ASSIGN_OR_RETURN(context.token, ParseToken(token, options.token_path));
  }
  if (options.ca_path.has_value()) {
    TY_ASSIGN_OR_RETURN(context.authorities, ReadAuthorities(*options.ca_path));
  }
  context.insecure = session.insecure();
  TY_RETURN_IF_ERROR(CheckTokenIsSafe(context));
  TY_RETURN_IF_ERROR(ChangeContexts([&](ContextFile& file) {
    file.contexts[options.name] = context;
    file.current = options.name;
    return absl::OkStatus();
  }));
  session.out().Write(absl::StrCat("saved and now using ", options.name, "\n"));
  return kExitOk;
}

absl::StatusOr<int> Remove(Session& session, const std::string& name) {
  TY_RETURN_IF_ERROR(ChangeContexts([&](ContextFile& file) {
    if (file.contexts.erase(name) == 0) return NoContext(name, file);
    if (file.current == name) file.current.clear();
    return absl::OkStatus();
  }));
  session.out().Write(absl::StrCat("removed ", name, "\n"));
  return kExitOk;
}

}  // namespace

void AddContext(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("context", "Servers you know: list, use, show, add, remove");
  command->require_subcommand(1);
  session.SetBody(command->add_subcommand("list", "List contexts"),
                  [&session] { return ListContexts(session); });
  session.SetBody(command->add_subcommand("show", "Which server the next command talks to"),
                  [&session] { return Show(session); });
  auto name = std::make_shared<std::string>();  // lives as long as the commands' bodies
  CLI::App* use = command->add_subcommand("use", "Make a context the current one");
  use->add_option("NAME", *name, "Name of the context")->required();
  session.SetBody(use, [&session, name] { return Use(session, *name); });
  CLI::App* remove = command->add_subcommand("remove", "Forget a context");
  remove->add_option("NAME", *name, "Name of the context")->required();
  session.SetBody(remove, [&session, name] { return Remove(session, *name); });
  auto options = std::make_shared<AddOptions>();
  CLI::App* add = command->add_subcommand("add", "Save a context and make it the current one");
  add->add_option("NAME", options->name, "Name of the context")->required();
  add->add_option("ADDRESS", options->servers, "HOST:PORT of the server, or of each of several")
      ->required();
  add->add_option("--token-from", options->token_path, "File that holds the token");
  add->add_option("--ca-from", options->ca_path,
                  "PEM file with the authority that vouches for the server, which then is reached "
                  "by TLS alone; \"system\": those that this machine trusts");
  add->add_option("--default-project", options->project, "Project (default: default)");
  session.SetBody(add, [&session, options] { return Add(session, *options); });
}

}  // namespace trainyard::cli
