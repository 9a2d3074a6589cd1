#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trainyard {

// One yard and how to talk to it.
struct Context {
  std::string server;  // HOST:PORT, or several with commas between them
  std::string token;   // secret
  std::string project = "default";
  std::string directory;    // of the local yard that it belongs to, or empty
  std::string authorities;  // as in ClientOptions
  bool insecure = false;    // its token may travel in clear text over a network
};

// The servers that a user knows, in one YAML file of mode 0600:
//
//   current: local
//   contexts:
//     local: {server: "127.0.0.1:7070", token: 5f…, project: default, directory: /home/ada/yard}
//     team: {server: ["yard-a:7070", "yard-b:7070"], token: 81…, authorities: "-----BEGIN…"}
struct ContextFile {
  std::string current;  // may be empty
  std::map<std::string, Context> contexts;
};

// $XDG_CONFIG_HOME/trainyard/contexts.yaml, else $HOME/.config/trainyard/contexts.yaml.
// kFailedPrecondition when neither is set.
absl::StatusOr<std::string> ContextFilePath();

// A file that does not exist is empty. kPermissionDenied: others may read it, so its tokens may be
// known to them. kInvalidArgument: not a context file.
absl::StatusOr<ContextFile> LoadContexts(const std::string& path);

// Reads the file at ContextFilePath(), lets `change` edit it and writes it atomically, all under a
// lock: neither of two concurrent writers loses its change.
absl::Status ChangeContexts(const std::function<absl::Status(ContextFile&)>& change);

// kFailedPrecondition: the token would travel in clear text to another machine, and `context` does
// not say that it may.
absl::Status CheckTokenIsSafe(const Context& context);

// What the command line said; empty fields are not given.
struct ContextFlags {
  std::string context;
  std::string server;  // HOST:PORT, or several with commas
  std::string token_file;
  std::optional<std::string> ca_file;  // see ReadAuthorities
  bool insecure = false;
  std::string project;
};

struct ResolvedContext {
  std::string name;  // empty when flags or environment alone decided
  Context context;
};

// Which server to talk to. Per field: flags, then TRAINYARD_CONTEXT, TRAINYARD_SERVER,
// TRAINYARD_TOKEN, TRAINYARD_CA_FILE and TRAINYARD_PROJECT, then the current context. A token from
// the file is sent only to the servers that it belongs to, and their authorities vouch for no
// others. kNotFound: no such context; kFailedPrecondition: no
// server is known. Ask CheckTokenIsSafe before the token is used.
absl::StatusOr<ResolvedContext> ResolveContext(const ContextFlags& flags);

}  // namespace trainyard
