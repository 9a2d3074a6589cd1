#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/cli/exit_code.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/output.h"
#include "clients/cli/terminal.h"
#include "clients/cpp/client.h"
#include "clients/cpp/context_file.h"

namespace CLI {
class App;
}

namespace trainyard::cli {

// What the commands of one run share: global flags, the connection (made when first needed, so that
// a command without one starts at once), the terminal and the exit code. Used by one thread.
class Session {
 public:
  Session();

  // Global flags, on the root command.
  void AddFlags(CLI::App& root);

  // Makes `run` the body of a subcommand. The exit code that it returns becomes that of the
  // process; an error is printed on stderr (Tell) and gives its own exit code.
  void SetBody(CLI::App* command, std::function<absl::StatusOr<int>()> run);

  int exit_code() const { return exit_code_; }

  absl::StatusOr<Client*> Connect();
  // Ctrl-C ends the process; within an Interrupt::Scope it stops the running stream instead.
  Interrupt& interrupt();
  // Closes the connection and restores the signal mask. Must be called before exec.
  void Disconnect();
  absl::StatusOr<ResolvedContext> Resolve() const { return ResolveContext(flags_); }

  bool insecure() const { return flags_.insecure; }

  // What --output asks for, in the body of a command; a body is not run with what is no format.
  OutputFormat format() const { return format_; }
  bool wide() const { return format_ == OutputFormat::kWide; }
  bool wants_messages() const {
    return format_ == OutputFormat::kJson || format_ == OutputFormat::kYaml;
  }

  // Writes a message, or a list of them, if --output asks for a form that programs read: JSON, YAML
  // or the names of messages that have one. Returns whether it does.
  template <typename Message>
  bool WriteForPrograms(const Message& message) {
    if constexpr (requires { message.name(); }) {
      if (format_ == OutputFormat::kName) {
        out_.Write(message.name() + "\n");
        return true;
      }
    }
    if (wants_messages()) out_.Write(Serialize(format_, message));
    return wants_messages();
  }
  template <typename Message>
  bool WriteForPrograms(const std::vector<Message>& messages) {
    if constexpr (requires { messages[0].name(); }) {
      for (const Message& message : messages) {
        if (format_ == OutputFormat::kName) out_.Write(message.name() + "\n");
      }
      if (format_ == OutputFormat::kName) return true;
    }
    if (!wants_messages()) return false;
    std::vector<const google::protobuf::Message*> pointers;
    for (const Message& message : messages) pointers.push_back(&message);
    out_.Write(SerializeList(format_, pointers));
    return true;
  }

  // "projects/default", and the full name of a job given by id or by full name.
  absl::StatusOr<std::string> Parent();
  absl::StatusOr<std::string> JobName(const std::string& text);

  const Terminal& terminal() const { return terminal_; }  // of stdout
  Sink& out() { return out_; }
  Sink& err() { return err_; }

  // One clear sentence on stderr, with the fix where one is known; returns the exit code.
  int Tell(const absl::Status& status);

 private:
  ContextFlags flags_;
  std::string format_name_ = "table";
  OutputFormat format_ = OutputFormat::kTable;
  double patience_seconds_ = 3;
  bool no_color_ = false;
  Terminal terminal_;
  FdSink out_;
  FdSink err_;
  ResolvedContext resolved_;
  std::unique_ptr<Interrupt> interrupt_;
  std::unique_ptr<Client> client_;
  int exit_code_ = 0;
};

// The sentence that Tell writes.
std::string Sentence(const absl::Status& status, const ResolvedContext& context);

}  // namespace trainyard::cli
