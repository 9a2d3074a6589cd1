#include "absl/strings/str_cat.h"
#include "clients/cli/commands.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

absl::StatusOr<v1::ServerInfo> AskServer(Session& session) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  return client->GetServerInfo();
}

absl::StatusOr<int> Version(Session& session, bool client_only) {
  session.out().Write(absl::StrCat("client  ", TRAINYARD_VERSION, "\n"));
  if (client_only) return kExitOk;
  const absl::StatusOr<v1::ServerInfo> info = AskServer(session);
  if (!info.ok()) return info.status();
  session.out().Write(absl::StrCat("server  ", info->version(), "  schema ", info->schema_version(),
                                   "  replica ", info->replica(), info->leader() ? "  leader" : "",
                                   "\n"));
  return kExitOk;
}

}  // namespace

void AddVersion(CLI::App& root, Session& session) {
  root.set_version_flag("--version", "trainyard " TRAINYARD_VERSION, "Version of this program");
  CLI::App* command = root.add_subcommand("version", "Versions of this program and of the server");
  auto client_only = std::make_shared<bool>(false);  // lives as long as the command's body
  command->add_flag("--client", *client_only, "Do not ask the server");
  session.SetBody(command, [&session, client_only] { return Version(session, *client_only); });
}

}  // namespace trainyard::cli
