#include "clients/cli/session.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/option_checks.h"
#include "clients/cli/shown.h"
#include "storage/base/ids.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

// Whether the message is that of gRPC or of our client for a server that cannot be reached, as
// opposed to that of a server that answers UNAVAILABLE itself.
bool IsUnreachable(const absl::Status& status) {
  for (const char* words :
       {"failed to connect to all addresses", "Connection refused", "Socket closed",
        "Connection reset", "connections to all backends", "Broken pipe", "DNS resolution failed",
        "keepalive", "GOAWAY", "Deadline Exceeded", "went silent", "ended early", "recvmsg"}) {
    if (absl::StrContains(status.message(), words)) return true;
  }
  return status.message().empty();
}

// What is wrong between TLS here and at the server, if gRPC's words say so; else "".
std::string WrongLink(const absl::string_view words, const Context& context) {
  const std::string at = absl::StrCat("the server at ", context.server);
  if (absl::StrContains(words, "certificate verify failed")) {
    return absl::StrCat(at, " shows a certificate that no trusted authority signed, or that has ",
                        "expired (or a clock is wrong); name the yard's authority with --ca-file");
  }
  if (absl::StrContains(words, "Hostname Verification Check failed")) {
    return absl::StrCat(at, " shows a certificate that stands for other hosts; name one of them ",
                        "with --server");
  }
  if (absl::StrContains(words, "wrong version number")) {
    return absl::StrCat(at, " speaks no TLS; leave out --ca-file (TRAINYARD_CA_FILE), or name ",
                        "another port");
  }
  if (context.authorities.empty() && absl::StrContains(words, "failed to connect") &&
      absl::StrContains(words, "Socket closed")) {
    return absl::StrCat(at, " hangs up on clear text; if it speaks TLS, name its authority with ",
                        "--ca-file");
  }
  return "";
}

std::string StartCommand(const ResolvedContext& context) {
  return context.context.directory.empty()
             ? "trainyard local start"
             : absl::StrCat("trainyard local start --dir ", context.context.directory);
}

}  // namespace

std::string Sentence(const absl::Status& status, const ResolvedContext& context) {
  const std::string& server = context.context.server;
  const std::string text(status.message());
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      if (server.empty() || !IsUnreachable(status)) return text;
      if (const std::string wrong = WrongLink(text, context.context); !wrong.empty()) return wrong;
      return absl::StrCat("no server at ", server, " (", text, "); start one with `",
                          StartCommand(context), "`, or name another with --server");
    case absl::StatusCode::kDeadlineExceeded:
      if (server.empty() || !IsUnreachable(status)) return text;
      return absl::StrCat("the server at ", server, " did not answer in time");
    case absl::StatusCode::kUnauthenticated:
      return absl::StrCat(server,
                          context.context.token.empty() ? " wants a token and none is set"
                                                        : " does not accept the token",
                          " (", text, "); choose a context with `trainyard context use`, or set ",
                          "TRAINYARD_TOKEN");
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return server.empty() ? text
                            : absl::StrCat(absl::StatusCodeToString(status.code()), ": ", text);
    default:
      return text.empty() ? absl::StatusCodeToString(status.code()) : text;
  }
}

Session::Session()
    : terminal_(TerminalOf(STDOUT_FILENO)), out_(STDOUT_FILENO), err_(STDERR_FILENO) {}

void Session::AddFlags(CLI::App& root) {
  const std::string group = "Global options";
  root.add_option("--context", flags_.context, "Context to use (default: the current one)")
      ->group(group);
  root.add_option_function<std::vector<std::string>>(
          "--server",
          [this](const std::vector<std::string>& servers) {
            flags_.server = absl::StrJoin(servers, ",");
          },
          "HOST:PORT of the server; several (repeated, or with commas) of one yard")
      ->take_all()
      ->group(group);
  root.add_option("--token-file", flags_.token_file, "File that holds the token")->group(group);
  root.add_option("--ca-file", flags_.ca_file,
                  "PEM file with the authority that vouches for the server, which then is reached "
                  "by TLS alone; \"system\": those that this machine trusts")
      ->group(group);
  root.add_flag("--insecure", flags_.insecure,
                "Send the token in clear text where no authority is named: on a network that you "
                "trust")
      ->group(group);
  root.add_option("-p,--project", flags_.project, "Project (default: the context's)")->group(group);
  root.add_option("-o,--output", format_name_, "table, wide, json, yaml or name")->group(group);
  root.add_option("--patience", patience_seconds_,
                  "Seconds to wait for a server that is away (default 3)")
      ->transform(Seconds())
      ->group(group);
  root.add_flag("--no-color", no_color_, "No colours (as NO_COLOR)")->group(group);
}

void Session::SetBody(CLI::App* command, std::function<absl::StatusOr<int>()> run) {
  command->callback([this, run = std::move(run)] {
    if (no_color_) terminal_.color = false;
    const absl::StatusOr<OutputFormat> format = ParseOutputFormat(format_name_);
    if (format.ok()) format_ = *format;
    const absl::StatusOr<int> code = format.ok() ? run() : format.status();
    exit_code_ = code.ok() ? *code : Tell(code.status());
  });
}

absl::StatusOr<Client*> Session::Connect() {
  if (client_ == nullptr) {
    interrupt();  // before gRPC starts its threads
    TY_ASSIGN_OR_RETURN(resolved_, Resolve());
    TY_RETURN_IF_ERROR(CheckTokenIsSafe(resolved_.context));
    ClientOptions options;
    options.server = resolved_.context.server;
    options.token = resolved_.context.token;
    options.authorities = resolved_.context.authorities;
    options.patience = absl::Seconds(patience_seconds_);
    client_ = std::make_unique<Client>(std::move(options));
  }
  return client_.get();
}

Interrupt& Session::interrupt() {
  if (interrupt_ == nullptr) interrupt_ = std::make_unique<Interrupt>();
  return *interrupt_;
}

void Session::Disconnect() {
  client_.reset();
  interrupt_.reset();
}

absl::StatusOr<std::string> Session::Parent() {
  TY_ASSIGN_OR_RETURN(const ResolvedContext resolved, Resolve());
  return absl::StrCat("projects/", resolved.context.project);
}

absl::StatusOr<std::string> Session::JobName(const std::string& text) {
  if (absl::StartsWith(text, "projects/")) return text;
  if (!IsResourceId(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not the name of a job; expected lower-case letters, digits and "
                     "hyphens, or projects/PROJECT/jobs/JOB"));
  }
  TY_ASSIGN_OR_RETURN(const std::string parent, Parent());
  return absl::StrCat(parent, "/jobs/", text);
}

int Session::Tell(const absl::Status& status) {
  err_.Write(absl::StrCat(Paint(TerminalOf(STDERR_FILENO), Color::kRed, "trainyard:"), " ",
                          Indented(EscapedLines(Sentence(status, resolved_)), "  "), "\n"));
  return ExitCodeOf(status);
}

}  // namespace trainyard::cli
