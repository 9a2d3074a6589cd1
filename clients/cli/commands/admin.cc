#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/commands.h"
#include "clients/cli/doctor.h"
#include "clients/cli/format.h"
#include "clients/cli/option_checks.h"
#include "clients/cli/shown.h"
#include "clients/cli/table.h"
#include "storage/base/field_error.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/printable.h"
#include "storage/base/server_list.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct JoinTokenFlags {
  std::string pool;
  double valid_for = 3600;  // seconds
  int most_joins = 1;
  std::optional<std::string> path;
};

// Before there is a token, which nobody would have if the file cannot be written. What is at `path`
// stays as it is.
absl::Status CheckCanWrite(const std::string& path) {
  const std::string trial = absl::StrCat(path, ".", RandomHex(8));
  TY_RETURN_IF_ERROR(WriteFileAtomically(trial, "", 0600));
  unlink(trial.c_str());
  return absl::OkStatus();
}

absl::Status Keep(const std::string& name, const std::string& text, const std::string& path) {
  const absl::Status written = WriteFileAtomically(path, text, 0600);
  if (written.ok()) return written;
  return Annotate(written, absl::StrCat(name, " was made, and could not be kept; revoke it"));
}

std::string Nodes(int count) { return absl::StrCat(count, count == 1 ? " node" : " nodes"); }

absl::StatusOr<int> MakeToken(Session& session, const JoinTokenFlags& flags) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::CreateJoinTokenRequest request;
  request.set_pool(flags.pool);
  request.mutable_valid_for()->set_seconds(static_cast<int64_t>(flags.valid_for));
  request.set_most_joins(flags.most_joins);
  if (flags.path.has_value()) TY_RETURN_IF_ERROR(CheckCanWrite(*flags.path));
  TY_ASSIGN_OR_RETURN(v1::JoinToken made, client->CreateJoinToken(request));
  if (flags.path.has_value()) {
    TY_RETURN_IF_ERROR(Keep(made.name(), made.file(), *flags.path));
    made.clear_file();  // it may be shown, and logged
    if (session.WriteForPrograms(made)) return kExitOk;
  } else if (session.wants_messages()) {
    session.WriteForPrograms(made);
    return kExitOk;
  } else {
    session.out().Write(made.file());
  }
  session.err().Write(absl::StrCat(
      LastSegment(made.name()), ": lets ", Nodes(made.most_joins()), " join, until ",
      FormatWhen(TimeOf(made.expire_time())), "; the yard's authority is ",
      made.authority_fingerprint().substr(0, 16), "…\n", "on each machine: trainyard-agent ",
      "--join-token ", flags.path.value_or("FILE"), " --server HOST:PORT, the port for agents\n"));
  return kExitOk;
}

std::string StateOf(const v1::JoinToken& token) {
  if (token.has_revoke_time()) return "revoked";
  if (TimeOf(token.expire_time()) <= absl::Now()) return "ended";
  return token.joins() >= token.most_joins() ? "used up" : "valid";
}

absl::StatusOr<int> ListTokens(Session& session) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::ListJoinTokensResponse answer,
                      client->ListJoinTokens(v1::ListJoinTokensRequest()));
  const std::vector<v1::JoinToken> tokens(answer.join_tokens().begin(), answer.join_tokens().end());
  if (session.WriteForPrograms(tokens)) return kExitOk;
  if (tokens.empty()) {
    session.err().Write("no join tokens; `trainyard admin join-token` makes one\n");
    return kExitOk;
  }
  Table table({"JOIN TOKEN", "STATE", "POOL", "JOINS", "ENDS", "MADE BY"});
  for (const v1::JoinToken& raw : tokens) {
    const v1::JoinToken token = Shown(raw);
    table.Add({LastSegment(token.name()), StateOf(token), token.pool().empty() ? "-" : token.pool(),
               absl::StrCat(token.joins(), " of ", token.most_joins()),
               FormatWhen(TimeOf(token.expire_time())), token.creator()});
  }
  session.out().Write(table.Render(session.terminal()));
  return kExitOk;
}

absl::StatusOr<int> RevokeToken(Session& session, const std::string& id) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::RevokeJoinTokenRequest request;
  request.set_name(absl::StartsWith(id, "joinTokens/") ? id : absl::StrCat("joinTokens/", id));
  TY_ASSIGN_OR_RETURN(const v1::JoinToken revoked, client->RevokeJoinToken(request));
  if (session.WriteForPrograms(revoked)) return kExitOk;
  session.out().Write(absl::StrCat(LastSegment(revoked.name()), " lets nobody join any more; ",
                                   Nodes(revoked.joins()), " joined with it and stay\n"));
  return kExitOk;
}

void AddJoinToken(CLI::App& admin, Session& session) {
  CLI::App* command = admin.add_subcommand(
      "join-token", "Make a file by which machines join the yard as nodes; list, revoke");
  auto flags = std::make_shared<JoinTokenFlags>();  // lives as long as the command's body
  command->add_option("--pool", flags->pool,
                      "Pool that the nodes belong to, as their label 'pool'");
  command->add_option("--for", flags->valid_for, "How long it is valid, such as 30m or 7d")
      ->transform(Seconds())
      ->default_str("1h");
  command->add_option("--joins", flags->most_joins, "How many nodes may join with it")
      ->capture_default_str()
      ->check(AtLeast(1));
  command->add_option("--to", flags->path,
                      "File to write, for its owner alone to read; default: standard output");
  CLI::App* list = command->add_subcommand("list", "List join tokens; none is shown itself");
  session.SetBody(list, [&session] { return ListTokens(session); });
  CLI::App* revoke =
      command->add_subcommand("revoke", "Let nobody join with it any more; nodes that have, stay");
  auto id = std::make_shared<std::string>();
  revoke->add_option("ID", *id, "The join token, as `list` names it")->required();
  session.SetBody(revoke, [&session, id] { return RevokeToken(session, *id); });
  command->require_subcommand(0, 1);
  session.SetBody(command, [&session, command, flags] {
    return command->get_subcommands().empty() ? MakeToken(session, *flags)
                                              : absl::StatusOr<int>(session.exit_code());
  });
}

struct TokenFlags {
  std::string principal, role, project;
  bool everywhere = false;
  double valid_for = 90.0 * 24 * 3600;  // seconds
  std::optional<std::string> path;
};

std::string ScopeOf(const v1::Caller& holder) {
  return holder.project().empty() ? "the whole yard" : LastSegment(holder.project());
}

absl::StatusOr<int> CreateAccessToken(Session& session, const TokenFlags& flags) {
  if (flags.everywhere != flags.project.empty()) {
    return absl::InvalidArgumentError(
        "say where the role counts: --in PROJECT, or --everywhere for the whole yard");
  }
  if (flags.path.has_value()) TY_RETURN_IF_ERROR(CheckCanWrite(*flags.path));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::CreateTokenRequest request;
  request.set_principal(flags.principal);
  request.set_role(flags.role);
  if (!flags.project.empty()) request.set_project(absl::StrCat("projects/", flags.project));
  request.mutable_valid_for()->set_seconds(static_cast<int64_t>(flags.valid_for));
  TY_ASSIGN_OR_RETURN(v1::AccessToken made, client->CreateToken(request));
  if (flags.path.has_value()) {
    TY_RETURN_IF_ERROR(Keep(made.name(), made.token() + "\n", *flags.path));
    made.clear_token();  // it may be shown, and logged
  }
  if (session.wants_messages()) {
    session.WriteForPrograms(made);
    return kExitOk;
  }
  if (!flags.path.has_value()) session.out().Write(made.token() + "\n");
  session.err().Write(absl::StrCat(LastSegment(made.name()), ": ", made.holder().principal(),
                                   " is ", made.holder().role(), " of ", ScopeOf(made.holder()),
                                   " with it, until ", FormatWhen(TimeOf(made.expire_time())),
                                   "\n"));
  return kExitOk;
}

std::string StateOf(const v1::AccessToken& token) {
  if (token.has_revoke_time()) return "revoked";
  if (token.has_expire_time() && TimeOf(token.expire_time()) <= absl::Now()) return "ended";
  return "valid";
}

absl::StatusOr<int> ListAccessTokens(Session& session) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::ListTokensRequest request;
  std::vector<v1::AccessToken> tokens;
  do {
    TY_ASSIGN_OR_RETURN(v1::ListTokensResponse page, client->ListTokens(request));
    for (v1::AccessToken& token : *page.mutable_tokens()) tokens.push_back(std::move(token));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  if (session.WriteForPrograms(tokens)) return kExitOk;
  Table table({"TOKEN", "STATE", "PRINCIPAL", "ROLE", "OF", "ENDS", "MADE BY"});
  for (const v1::AccessToken& raw : tokens) {
    const v1::AccessToken token = Shown(raw);
    table.Add({LastSegment(token.name()), StateOf(token), token.holder().principal(),
               token.holder().role(), ScopeOf(token.holder()),
               token.has_expire_time() ? FormatWhen(TimeOf(token.expire_time())) : "never",
               token.creator().empty() ? "a server's flag" : token.creator()});
  }
  session.out().Write(table.Render(session.terminal()));
  return kExitOk;
}

absl::StatusOr<int> RevokeAccessToken(Session& session, const std::string& id) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::RevokeTokenRequest request;
  request.set_name(absl::StartsWith(id, "tokens/") ? id : absl::StrCat("tokens/", id));
  TY_ASSIGN_OR_RETURN(const v1::AccessToken revoked, client->RevokeToken(request));
  if (session.WriteForPrograms(revoked)) return kExitOk;
  session.out().Write(absl::StrCat(LastSegment(revoked.name()), " of ",
                                   revoked.holder().principal(), " counts no more\n"));
  return kExitOk;
}

void AddToken(CLI::App& admin, Session& session) {
  CLI::App* command = admin.add_subcommand(
      "token", "Tokens with which people and programs call: create, list, revoke");
  command->require_subcommand(1);
  CLI::App* create = command->add_subcommand("create", "Make a token; it is shown once");
  auto flags = std::make_shared<TokenFlags>();  // lives as long as the command's body
  create->add_option("PRINCIPAL", flags->principal, "Whose it is: user:NAME or service:NAME")
      ->required();
  create->add_option("--role", flags->role, "viewer, submitter, operator or admin")->required();
  create->add_option("--in", flags->project, "The project in which the role counts");
  create->add_flag("--everywhere", flags->everywhere, "It counts in the whole yard");
  create->add_option("--for", flags->valid_for, "How long it is valid, such as 12h or 30d")
      ->transform(Seconds())
      ->default_str("90d");
  create->add_option("--to", flags->path,
                     "File to write, for its owner alone to read; default: standard output");
  session.SetBody(create, [&session, flags] { return CreateAccessToken(session, *flags); });
  CLI::App* list = command->add_subcommand("list", "List tokens; none is shown itself");
  session.SetBody(list, [&session] { return ListAccessTokens(session); });
  CLI::App* revoke =
      command->add_subcommand("revoke", "Make it count no more, within a second, for good");
  auto id = std::make_shared<std::string>();
  revoke->add_option("ID", *id, "The token, as `list` names it")->required();
  session.SetBody(revoke, [&session, id] { return RevokeAccessToken(session, *id); });
}

struct ProjectFlags {
  std::string name;
  std::optional<std::string> unix_user, max_slots, max_jobs;
};

// "none" or a number.
absl::StatusOr<int> LimitIn(const char* flag, const std::string& text) {
  int limit = 0;
  if (text == "none") return -1;
  if (absl::SimpleAtoi(text, &limit) && limit >= 0) return limit;
  return FieldError(flag, absl::StrCat("'", text, "'"), "a number, or none");
}

absl::StatusOr<int> SetProject(Session& session, const ProjectFlags& flags) {
  if (!flags.unix_user.has_value() && !flags.max_slots.has_value() && !flags.max_jobs.has_value()) {
    return absl::InvalidArgumentError(
        "say what is to be set: --unix-user NAME, --max-slots NUMBER or --max-jobs NUMBER");
  }
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::SetProjectRequest request;
  request.set_name(absl::StrCat("projects/", flags.name));
  if (flags.unix_user.has_value()) request.set_unix_user(*flags.unix_user);
  if (flags.max_slots.has_value()) {
    TY_ASSIGN_OR_RETURN(const int limit, LimitIn("--max-slots", *flags.max_slots));
    request.set_max_slots(limit);
  }
  if (flags.max_jobs.has_value()) {
    TY_ASSIGN_OR_RETURN(const int limit, LimitIn("--max-jobs", *flags.max_jobs));
    request.set_max_jobs(limit);
  }
  TY_ASSIGN_OR_RETURN(const v1::Project project, client->SetProject(request));
  if (session.WriteForPrograms(project)) return kExitOk;
  const bool ignored =
      (request.max_slots() > -1 && request.has_max_slots() && !project.has_max_slots()) ||
      (request.max_jobs() > -1 && request.has_max_jobs() && !project.has_max_jobs());
  if (ignored) {
    return absl::UnimplementedError("the server is of an older version and knows no limits");
  }
  const auto limit = [](bool has, int number) {
    return has ? absl::StrCat("at most ", number) : std::string("any number");
  };
  session.out().Write(absl::StrCat(
      "jobs of ", LastSegment(project.name()), " that start from now on run as ",
      project.unix_user().empty() ? "the agent of their node" : Shown(project).unix_user(),
      ", hold ", limit(project.has_max_slots(), project.max_slots()), " of slots together, and ",
      limit(project.has_max_jobs(), project.max_jobs()),
      " of them may be there that have not ended\n"));
  return kExitOk;
}

absl::StatusOr<std::vector<v1::Project>> AllProjects(Client& client) {
  v1::ListProjectsRequest request;
  std::vector<v1::Project> projects;
  do {
    TY_ASSIGN_OR_RETURN(v1::ListProjectsResponse page, client.ListProjects(request));
    for (v1::Project& project : *page.mutable_projects()) projects.push_back(std::move(project));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return projects;
}

absl::StatusOr<int> ListProjects(Session& session) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const std::vector<v1::Project> projects, AllProjects(*client));
  if (session.WriteForPrograms(projects)) return kExitOk;
  if (projects.empty()) {
    session.err().Write("nothing was set of any project; `trainyard admin project set` does\n");
    return kExitOk;
  }
  const auto limit = [](bool has, int number) {
    return has ? absl::StrCat(number) : std::string("-");
  };
  Table table({"PROJECT", "RUNS AS", "SLOTS", "JOBS", "SET"});
  for (const v1::Project& raw : projects) {
    const v1::Project project = Shown(raw);
    table.Add({LastSegment(project.name()),
               project.unix_user().empty() ? "the agent" : project.unix_user(),
               limit(project.has_max_slots(), project.max_slots()),
               limit(project.has_max_jobs(), project.max_jobs()),
               FormatWhen(TimeOf(project.update_time()))});
  }
  session.out().Write(table.Render(session.terminal()));
  return kExitOk;
}

void AddProject(CLI::App& admin, Session& session) {
  CLI::App* command = admin.add_subcommand(
      "project", "What is true of a project, wherever its jobs run: set, list");
  command->require_subcommand(1);
  CLI::App* set = command->add_subcommand("set", "Say something of a project; the rest stays");
  auto flags = std::make_shared<ProjectFlags>();  // lives as long as the command's body
  set->add_option("PROJECT", flags->name, "The project, such as vision")->required();
  set->add_option("--unix-user", flags->unix_user,
                  "As which user of the nodes its jobs run; '': as the agent");
  set->add_option(
      "--max-slots", flags->max_slots,
      "How many slots its jobs may hold together; more wait. none: as many as there are");
  set->add_option("--max-jobs", flags->max_jobs,
                  "How many of its jobs may be there that have not ended; more are refused. none: "
                  "any number");
  session.SetBody(set, [&session, flags] { return SetProject(session, *flags); });
  CLI::App* list = command->add_subcommand("list", "List projects of which something was set");
  session.SetBody(list, [&session] { return ListProjects(session); });
}

absl::StatusOr<int> WhoAmI(Session& session) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::Caller caller, client->GetCaller());
  if (session.WriteForPrograms(caller)) return kExitOk;
  session.out().Write(
      absl::StrCat(caller.principal(), ", ", caller.role(), " of ", ScopeOf(caller), "\n"));
  return kExitOk;
}

absl::StatusOr<int> RunDoctor(Session& session) {
  TY_ASSIGN_OR_RETURN(const ResolvedContext resolved, session.Resolve());
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  YardReport yard{.client_version = TRAINYARD_VERSION,
                  .tls = !resolved.context.authorities.empty(),
                  .loopback = IsLoopback(client->server())};
  TY_RETURN_IF_ERROR(client->GetServerInfo().status());  // connects
  const absl::Time asked = absl::Now();
  TY_ASSIGN_OR_RETURN(yard.server, client->GetServerInfo());
  yard.answered = absl::Now();
  yard.round_trip = yard.answered - asked;
  TY_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, client->ListNodes(v1::ListNodesRequest()));
  yard.nodes.assign(nodes.nodes().begin(), nodes.nodes().end());
  absl::StatusOr<std::vector<v1::Project>> projects = AllProjects(*client);
  if (projects.ok()) yard.projects = *std::move(projects);
  const std::vector<Finding> findings = Diagnose(yard);
  static constexpr const char* kStates[] = {"good", "warning", "BAD"};
  Table table({"WHAT", "STATE", "DETAIL"});
  nlohmann::json for_programs = nlohmann::json::array();
  bool bad = false;
  for (const Finding& finding : findings) {
    bad = bad || finding.state == Finding::kBad;
    const std::string what = EscapedLine(finding.what), detail = EscapedLine(finding.detail);
    table.Add({LastSegment(what), kStates[finding.state], detail});
    for_programs.push_back({{"what", what}, {"state", kStates[finding.state]}, {"detail", detail}});
  }
  session.out().Write(session.wants_messages() ? for_programs.dump(2) + "\n"  // YAML, too
                                               : table.Render(session.terminal()));
  return bad ? kExitPrecondition : kExitOk;
}

}  // namespace

void AddAdmin(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("admin", "What admins do: token, join-token, project, doctor");
  command->require_subcommand(1);
  AddToken(*command, session);
  AddJoinToken(*command, session);
  AddProject(*command, session);
  CLI::App* doctor = command->add_subcommand(
      "doctor", "Look for what is wrong with the yard: server, database, clocks, nodes, projects");
  session.SetBody(doctor, [&session] { return RunDoctor(session); });
}

void AddWhoAmI(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("whoami", "Whom the server takes you for, and your role");
  session.SetBody(command, [&session] { return WhoAmI(session); });
}

}  // namespace trainyard::cli
