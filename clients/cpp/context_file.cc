#include "clients/cpp/context_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/tls/pem_files.h"
#include "storage/base/file.h"
#include "storage/base/server_list.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"
#include "storage/base/token.h"
#include "yaml-cpp/yaml.h"

// yaml-cpp reports by exceptions; in clients/ this is the file where they become Status.
namespace trainyard {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string Field(const YAML::Node& node, const char* key, const std::string& otherwise) {
  const YAML::Node value = node[key];
  return value.IsDefined() && !value.IsNull() ? value.as<std::string>() : otherwise;
}

// One address, several with commas, or a list.
std::string Servers(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "";
  if (!node.IsSequence()) return node.as<std::string>();
  return absl::StrJoin(node.as<std::vector<std::string>>(), ",");
}

absl::StatusOr<ContextFile> ParseContexts(const std::string& text, const std::string& path) {
  try {
    ContextFile file;
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return file;
    file.current = Field(root, "current", "");
    for (const auto& entry : root["contexts"]) {
      Context context;
      context.server = Servers(entry.second["server"]);
      context.token = Field(entry.second, "token", "");
      context.project = Field(entry.second, "project", "default");
      context.directory = Field(entry.second, "directory", "");
      context.authorities = Field(entry.second, "authorities", "");
      context.insecure = Field(entry.second, "insecure", "") == "true";
      file.contexts.emplace(entry.first.as<std::string>(), context);
    }
    return file;
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", error.mark.line + 1, ":",
                                                   error.mark.column + 1,
                                                   ": not a context file: ", error.msg));
  }
}

std::string WriteContexts(const ContextFile& file) {
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << "current" << YAML::Value << YAML::DoubleQuoted
      << file.current << YAML::Key << "contexts" << YAML::Value << YAML::BeginMap;
  for (const auto& [name, context] : file.contexts) {
    out << YAML::Key << name << YAML::Value << YAML::BeginMap;
    const std::pair<const char*, const std::string*> fields[] = {
        {"server", &context.server},
        {"token", &context.token},
        {"project", &context.project},
        {"directory", &context.directory},
        {"authorities", &context.authorities}};
    for (const auto& [key, value] : fields) {
      if (!value->empty()) {
        out << YAML::Key << key << YAML::Value << YAML::DoubleQuoted << *value;
      }
    }
    if (context.insecure) out << YAML::Key << "insecure" << YAML::Value << true;
    out << YAML::EndMap;
  }
  out << YAML::EndMap << YAML::EndMap;
  return absl::StrCat(out.c_str(), "\n");
}

absl::StatusOr<FileDescriptor> Lock(const std::string& path) {
  FileDescriptor lock(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, path);
  while (flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return ErrnoStatus(errno, path);
  }
  return lock;
}

absl::StatusOr<std::string> TokenFromFile(const std::string& path) {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 4096));
  return ParseToken(text, path);
}

// Whether each server of `some` is one of `all`. Lists that cannot be read have nothing in common.
bool IsSubsetOf(const std::string& some, const std::string& all) {
  const absl::StatusOr<std::vector<std::string>> asked = ParseServers(some);
  const absl::StatusOr<std::vector<std::string>> known = ParseServers(all);
  if (!asked.ok() || !known.ok()) return false;
  return std::all_of(asked->begin(), asked->end(), [&known](const std::string& server) {
    return std::find(known->begin(), known->end(), server) != known->end();
  });
}

// The context that the flags, the environment or the file name; one without a name and a server
// when none does.
absl::StatusOr<ResolvedContext> ChosenContext(const ContextFlags& flags, const ContextFile& file,
                                              const std::string& path) {
  const std::string asked =
      !flags.context.empty() ? flags.context : Environment("TRAINYARD_CONTEXT");
  const std::string& name = asked.empty() ? file.current : asked;
  if (name.empty()) return ResolvedContext();
  const auto found = file.contexts.find(name);
  if (found != file.contexts.end()) return ResolvedContext{name, found->second};
  if (asked.empty()) return ResolvedContext();
  std::vector<std::string> names;
  for (const auto& [known, unused] : file.contexts) names.push_back(known);
  return absl::NotFoundError(
      absl::StrCat("no context '", name, "' in ", path, DidYouMean(name, names)));
}

}  // namespace

absl::StatusOr<std::string> ContextFilePath() {
  const std::string xdg = Environment("XDG_CONFIG_HOME");
  if (!xdg.empty() && xdg[0] == '/') return absl::StrCat(xdg, "/trainyard/contexts.yaml");
  const std::string home = Environment("HOME");
  if (!home.empty()) return absl::StrCat(home, "/.config/trainyard/contexts.yaml");
  return absl::FailedPreconditionError(
      "neither XDG_CONFIG_HOME nor HOME is set: no place for contexts.yaml");
}

absl::StatusOr<ContextFile> LoadContexts(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return ContextFile();
    return ErrnoStatus(errno, path);
  }
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " holds tokens and others may read it; run `chmod 600 ", path, "`"));
  }
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 1 << 20));
  return ParseContexts(text, path);
}

absl::Status ChangeContexts(const std::function<absl::Status(ContextFile&)>& change) {
  TY_ASSIGN_OR_RETURN(const std::string path, ContextFilePath());
  TY_RETURN_IF_ERROR(MakeDirectories(path.substr(0, path.rfind('/')), 0700));
  TY_ASSIGN_OR_RETURN(const FileDescriptor lock, Lock(path + ".lock"));
  TY_ASSIGN_OR_RETURN(ContextFile file, LoadContexts(path));
  TY_RETURN_IF_ERROR(change(file));
  return WriteFileAtomically(path, WriteContexts(file), 0600);
}

absl::Status CheckTokenIsSafe(const Context& context) {
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> servers, ParseServers(context.server));
  if (context.token.empty() || !context.authorities.empty() || context.insecure) {
    return absl::OkStatus();
  }
  for (const std::string& server : servers) {
    if (IsLoopback(server)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the token would travel in clear text to ", server,
        "; name the authority that vouches for it (--ca-file), or say --insecure on a ",
        "network that you trust"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ResolvedContext> ResolveContext(const ContextFlags& flags) {
  const std::string server = !flags.server.empty() ? flags.server : Environment("TRAINYARD_SERVER");
  const std::string token = Environment("TRAINYARD_TOKEN");
  const std::string project =
      !flags.project.empty() ? flags.project : Environment("TRAINYARD_PROJECT");
  ResolvedContext chosen;
  const absl::StatusOr<std::string> path = ContextFilePath();
  if (path.ok()) {
    TY_ASSIGN_OR_RETURN(const ContextFile file, LoadContexts(*path));
    TY_ASSIGN_OR_RETURN(chosen, ChosenContext(flags, file, *path));
  }
  if (!server.empty() && !IsSubsetOf(server, chosen.context.server)) {
    chosen.name.clear();
    chosen.context.token.clear();
    chosen.context.directory.clear();
    chosen.context.authorities.clear();
    chosen.context.insecure = false;
  }
  if (!server.empty()) chosen.context.server = server;
  if (!flags.token_file.empty()) {
    TY_ASSIGN_OR_RETURN(chosen.context.token, TokenFromFile(flags.token_file));
  } else if (!token.empty()) {
    TY_ASSIGN_OR_RETURN(chosen.context.token, ParseToken(token, "TRAINYARD_TOKEN"));
  } else {
    TY_ASSIGN_OR_RETURN(chosen.context.token,
                        ParseToken(chosen.context.token, absl::StrCat("context ", chosen.name)));
  }
  const std::string ca_file = flags.ca_file.value_or(Environment("TRAINYARD_CA_FILE"));
  if (flags.ca_file.has_value() || !ca_file.empty()) {
    TY_ASSIGN_OR_RETURN(chosen.context.authorities, ReadAuthorities(ca_file));
  }
  chosen.context.insecure = chosen.context.insecure || flags.insecure;
  if (!project.empty()) chosen.context.project = project;
  if (chosen.context.server.empty()) {
    return absl::FailedPreconditionError(
        "no server is chosen; start one with `trainyard local start`, or name one with --server or "
        "`trainyard context use`");
  }
  TY_RETURN_IF_ERROR(ParseServers(chosen.context.server).status());
  return chosen;
}

}  // namespace trainyard
