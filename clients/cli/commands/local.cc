#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/commands.h"
#include "clients/cli/local/start.h"
#include "clients/cli/local/status.h"
#include "clients/cli/local/stop.h"
#include "clients/cli/local/supervisor.h"
#include "clients/cli/option_checks.h"
#include "clients/cli/table.h"
#include "storage/base/log.h"
#include "storage/base/spawn.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

absl::StatusOr<std::string> Directory(const std::string& given) {
  if (!given.empty()) return CanonicalPath(given);
  TY_ASSIGN_OR_RETURN(const std::string usual, DefaultYardDirectory());
  return CanonicalPath(usual);
}

// Without --dir the yard of the context in use, if it has one.
absl::StatusOr<Yard> ExistingYard(const Session& session, const std::string& dir) {
  const absl::StatusOr<ResolvedContext> in_use = session.Resolve();
  const bool named = !dir.empty() || !in_use.ok();
  TY_ASSIGN_OR_RETURN(const std::string path, Directory(named ? dir : in_use->context.directory));
  const Yard yard(path);
  if (yard.Exists()) return yard;
  return absl::NotFoundError(absl::StrCat("no yard in ", path,
                                          "; start one with `trainyard local start",
                                          dir.empty() ? "" : " --dir ", dir, "`"));
}

// Without --dir the yard of the context in use, if there is one, or else a new one in the usual
// folder: a yard that was stopped starts again.
absl::StatusOr<std::string> FolderToStart(const Session& session, const std::string& dir) {
  const absl::StatusOr<Yard> existing = ExistingYard(session, dir);
  return existing.ok() ? existing->dir() : Directory(dir);
}

absl::StatusOr<int> Start(Session& session, StartOptions options) {
  TY_ASSIGN_OR_RETURN(options.dir, FolderToStart(session, options.dir));
  TY_ASSIGN_OR_RETURN(const StartedYard started, StartYard(options));
  session.out().Write(absl::StrCat(
      started.was_running ? "the yard is already running: " : "the yard is running: ", options.dir,
      ", server 127.0.0.1:", started.config.port, ", context ", started.config.context, "\n"));
  return kExitOk;
}

absl::StatusOr<int> StopYard(Session& session, const std::string& dir, bool purge) {
  TY_ASSIGN_OR_RETURN(const Yard yard, ExistingYard(session, dir));
  TY_ASSIGN_OR_RETURN(const bool ran, StopYard(yard, purge));
  session.out().Write(absl::StrCat(ran ? "stopped " : "nothing ran in ", yard.dir(),
                                   purge ? " and removed its files" : "", "\n"));
  return kExitOk;
}

std::string StatusAsJson(const std::vector<PartStatus>& parts) {
  nlohmann::json json = nlohmann::json::array();
  for (const PartStatus& part : parts) {
    json.push_back({{"name", part.name},
                    {"alive", part.alive},
                    {"healthy", part.healthy},
                    {"pid", part.pid},
                    {"restarts", part.restarts},
                    {"detail", part.detail}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<int> Status(Session& session, const std::string& dir) {
  TY_ASSIGN_OR_RETURN(const Yard yard, ExistingYard(session, dir));
  TY_ASSIGN_OR_RETURN(const YardConfig config, yard.ReadConfig());
  const std::vector<PartStatus> parts = StatusOfYard(yard, config);
  bool all_well = true;
  Table table({"PART", "STATE", "PID", "RESTARTS", "HEALTH"});
  for (const int column : {2, 3}) table.AlignRight(column);
  for (const PartStatus& part : parts) {
    const bool well = part.alive && part.healthy;
    all_well = all_well && well;
    const char* const word = well ? "well" : part.alive ? "unwell" : "down";
    table.Add({part.name, Paint(session.terminal(), well ? Color::kGreen : Color::kRed, word),
               part.pid > 0 ? absl::StrCat(part.pid) : "-", absl::StrCat(part.restarts),
               part.detail});
  }
  session.out().Write(session.format() == OutputFormat::kJson ? StatusAsJson(parts)
                                                              : table.Render(session.terminal()));
  return all_well ? kExitOk : kExitUnavailable;
}

struct LogOptions {
  std::string dir;
  std::string part;
  int lines = 20;
  bool follow = false;
};

// Turns this process into tail(1).
absl::StatusOr<int> Logs(const Session& session, const LogOptions& options) {
  TY_ASSIGN_OR_RETURN(const Yard yard, ExistingYard(session, options.dir));
  std::vector<std::string> words = {"tail", "-n", absl::StrCat(options.lines)};
  if (options.follow) words.push_back("-F");
  for (const char* part : {"supervisor", "postgres", "server", "agent"}) {
    if (options.part.empty() || options.part == part) words.push_back(yard.log_path(part));
  }
  execvp("tail", PointersTo(words).data());
  return ErrnoStatus(errno, "tail");
}

absl::StatusOr<int> Supervise(const std::string& dir, int lock_fd) {
  SetUpLog("trainyard-supervisor");
  Supervisor supervisor(Yard(dir), FileDescriptor(fcntl(lock_fd, F_DUPFD_CLOEXEC, 0)));
  close(lock_fd);
  TY_RETURN_IF_ERROR(supervisor.Run());
  return kExitOk;
}

void AddDirectory(CLI::App* command, std::string& dir) {
  command->add_option("--dir", dir,
                      "Folder of the yard (default: that of the context, then "
                      "~/.local/share/trainyard; root: /var/lib/trainyard)");
}

void AddStart(CLI::App& parent, Session& session) {
  CLI::App* command = parent.add_subcommand(
      "start", "PostgreSQL, server and agent on this machine, restarted when they die");
  struct Flags {
    StartOptions options;
    double timeout_seconds = 60;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the command's body
  StartOptions& options = flags->options;
  AddDirectory(command, options.dir);
  command
      ->add_option("--port", options.port, "Port on 127.0.0.1 (default: a free one from 7070 on)")
      ->check(CLI::Range(1, 65535));
  command->add_option("--cpu-slots", options.cpu_slots, "CPU slots beside the GPUs (default 1)")
      ->check(CLI::Range(0, 4096));
  command
      ->add_option("--threads-per-slot", options.threads_per_slot,
                   "CPU threads of a slot (default: cores / slots)")
      ->check(CLI::Range(0, 4096));
  command->add_option("--save-as", options.context, "Name of the context (default: local)");
  command->add_option("--timeout", flags->timeout_seconds, "Seconds until it must be ready")
      ->transform(Seconds());
  session.SetBody(command, [&session, flags] {
    flags->options.timeout = absl::Seconds(flags->timeout_seconds);
    return Start(session, flags->options);
  });
}

}  // namespace

void AddLocal(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("local", "A whole yard on this machine: start, stop, status, logs");
  command->require_subcommand(1);
  AddStart(*command, session);
  auto dir = std::make_shared<std::string>();  // these live as long as the commands' bodies
  auto purge = std::make_shared<bool>(false);
  CLI::App* stop = command->add_subcommand("stop", "End every process of the yard");
  AddDirectory(stop, *dir);
  stop->add_flag("--purge", *purge, "Remove its files, too: jobs, metrics and checkpoints");
  session.SetBody(stop, [&session, dir, purge] { return StopYard(session, *dir, *purge); });
  CLI::App* status = command->add_subcommand("status", "Every part with its health");
  AddDirectory(status, *dir);
  session.SetBody(status, [&session, dir] { return Status(session, *dir); });
  auto log = std::make_shared<LogOptions>();
  CLI::App* logs = command->add_subcommand("logs", "What the parts printed");
  AddDirectory(logs, log->dir);
  logs->add_option("PART", log->part, "supervisor, postgres, server or agent (default: all)")
      ->check(CLI::IsMember({"supervisor", "postgres", "server", "agent"}));
  logs->add_option("-n,--lines", log->lines, "So many lines (default 20)")->check(AtLeast(0));
  logs->add_flag("-f,--follow", log->follow, "Go on until Ctrl-C");
  session.SetBody(logs, [&session, log] { return Logs(session, *log); });
  auto lock_fd = std::make_shared<int>(-1);
  CLI::App* supervise = command->add_subcommand("supervise", "Keeps a yard running")->group("");
  supervise->add_option("--dir", *dir)->required();
  supervise->add_option("--lock-fd", *lock_fd)->required();
  session.SetBody(supervise, [dir, lock_fd] { return Supervise(*dir, *lock_fd); });
}

}  // namespace trainyard::cli
