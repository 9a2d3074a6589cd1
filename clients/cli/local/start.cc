#include "clients/cli/local/start.h"

#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/local/postgres.h"
#include "clients/cli/local/stop.h"
#include "clients/cli/local/supervisor.h"
#include "clients/cli/programs.h"
#include "clients/cpp/client.h"
#include "clients/cpp/context_file.h"
#include "storage/base/free_port.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

constexpr int kFirstPort = 7070;
constexpr int kPortsTried = 200;
// A port that was free when it was chosen may be taken by another yard before the server starts;
// then the next one is tried.
constexpr int kMostTries = 5;
// An empty PostgreSQL cluster takes 40 MB, its write-ahead log grows by 16 MB at a time.
constexpr uint64_t kDiskNeeded = 128 << 20;
// A part that ended so often in a row shortly after its start will not come up.
constexpr int kMaxEarlyExits = 6;

// The port asked for, or the one that the yard had before, or the first free one from 7070 on,
// which is below the range of outgoing connections: they could take it while the server is down.
absl::StatusOr<int> ChoosePort(const StartOptions& options, const YardConfig& before) {
  if (options.port.has_value()) {
    if (PortIsFree(INADDR_LOOPBACK, *options.port)) return *options.port;
    return absl::FailedPreconditionError(absl::StrCat(
        "port ", *options.port, " is taken by another program; choose another with --port"));
  }
  if (before.port != 0 && PortIsFree(INADDR_LOOPBACK, before.port)) return before.port;
  for (int port = kFirstPort; port < kFirstPort + kPortsTried; ++port) {
    if (PortIsFree(INADDR_LOOPBACK, port)) return port;
  }
  return absl::FailedPreconditionError(absl::StrCat("no free port from ", kFirstPort, " to ",
                                                    kFirstPort + kPortsTried - 1,
                                                    "; choose one with --port"));
}

absl::Status CheckOwner(const std::string& dir) {
  struct stat info;
  if (stat(dir.c_str(), &info) != 0) return ErrnoStatus(errno, dir);
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, " is not a folder; choose another --dir"));
  }
  if (info.st_uid != geteuid()) {
    const passwd* owner = getpwuid(info.st_uid);
    return absl::PermissionDeniedError(absl::StrCat(
        dir, " belongs to user ", owner == nullptr ? absl::StrCat(info.st_uid) : owner->pw_name,
        "; choose another --dir, or start the yard as that user"));
  }
  if (access(dir.c_str(), W_OK) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(dir, " is not writable; choose another --dir"));
  }
  return absl::OkStatus();
}

absl::Status CheckEmptyOrYard(const Yard& yard) {
  if (yard.Exists()) return absl::OkStatus();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(yard.dir(), error)) {
    if (entry.path() == yard.lock_path()) continue;
    return absl::FailedPreconditionError(absl::StrCat(yard.dir(), " holds other files (",
                                                      entry.path().filename().string(),
                                                      ") and is no yard; choose another --dir"));
  }
  return absl::OkStatus();
}

absl::Status CheckDisk(const std::string& dir) {
  struct statvfs info;
  if (statvfs(dir.c_str(), &info) != 0) return ErrnoStatus(errno, dir);
  const uint64_t free = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (free >= kDiskNeeded) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the disk of ", dir, " has ", free >> 20, " MiB left and a yard needs at least ",
                   kDiskNeeded >> 20, " MiB; make room or choose another --dir"));
}

absl::Status MakeToken(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) return absl::OkStatus();
  return WriteFileAtomically(path, RandomHex(32) + "\n", 0600);
}

absl::Status MakeFolder(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(errno, path);
}

absl::Status PrepareFolder(const Yard& yard) {
  const std::string& dir = yard.dir();
  if (access(dir.c_str(), F_OK) != 0) {
    TY_RETURN_IF_ERROR(MakeDirectories(dir, 0755));
  }
  TY_RETURN_IF_ERROR(CheckOwner(dir));
  return CheckEmptyOrYard(yard);
}

// Everything that has to be on disk before parts can start.
absl::Status PrepareFiles(const Yard& yard, const YardConfig& config) {
  const std::string& dir = yard.dir();
  TY_RETURN_IF_ERROR(CheckDisk(dir));
  // User postgres, when root starts the yard, has to pass through to its own folder.
  if (chmod(dir.c_str(), geteuid() == 0 ? 0711 : 0700) != 0) return ErrnoStatus(errno, dir);
  TY_RETURN_IF_ERROR(yard.WriteConfig(config));
  for (const char* folder : {"/tokens", "/logs", "/run", "/agent", "/checkpoints"}) {
    TY_RETURN_IF_ERROR(MakeFolder(dir + folder, 0700));
  }
  TY_RETURN_IF_ERROR(MakeToken(yard.token_path("admin")));
  TY_RETURN_IF_ERROR(MakeToken(yard.token_path("agent")));
  return PrepareDatabase(yard);
}

absl::StatusOr<ProcessId> StartSupervisor(const Yard& yard, const FileDescriptor& lock) {
  TY_ASSIGN_OR_RETURN(const std::string program, OwnProgram());
  SpawnOptions options;
  options.argv = {
      program, "local", "supervise", "--dir", yard.dir(), "--lock-fd", absl::StrCat(lock.get())};
  options.log_path = yard.log_path("supervisor");
  options.environment = {{kYardVariable, yard.dir()}};
  options.new_session = true;
  options.inherited_fd = lock.get();
  return Spawn(options);
}

// The name that was asked for or that the yard had before; else "local" for the default folder and
// "local-" with the last part of its path for another.
std::string ContextName(const StartOptions& options, const YardConfig& before,
                        const std::string& dir) {
  if (!options.context.empty()) return options.context;
  if (!before.context.empty()) return before.context;
  const absl::StatusOr<std::string> usual = DefaultYardDirectory();
  if (usual.ok() && CanonicalPath(*usual) == dir) return "local";
  return absl::StrCat("local-", std::filesystem::path(dir).filename().string());
}

absl::Status SaveContext(const Yard& yard, YardConfig& config) {
  TY_ASSIGN_OR_RETURN(const std::string token, yard.AdminToken());
  return ChangeContexts([&](ContextFile& file) {
    // A context of that name that belongs to another yard keeps the name.
    std::string name = config.context;
    for (int i = 2; file.contexts.count(name) > 0 && file.contexts[name].directory != yard.dir();
         ++i) {
      name = absl::StrCat(config.context, "-", i);
    }
    config.context = name;
    Context& context = file.contexts[name];
    context.server = absl::StrCat("127.0.0.1:", config.port);
    context.token = token;
    context.directory = yard.dir();
    file.current = name;
    return yard.WriteConfig(config);
  });
}

// What to tell when a yard does not come up: the part that keeps dying, or the last reason.
absl::Status Explain(const Yard& yard, const absl::Status& last) {
  for (const PartState& part : ReadPartStates(yard)) {
    if (part.early_exits == 0) continue;
    return absl::InternalError(absl::StrCat(part.name, " does not come up (", part.last_exit, "); ",
                                            yard.log_path(part.name), " ends with\n",
                                            TailOfFile(yard.log_path(part.name), 8)));
  }
  return Annotate(last, absl::StrCat("the yard did not become ready; see ", yard.dir(), "/logs"));
}

bool IsHopeless(const Yard& yard) {
  for (const PartState& part : ReadPartStates(yard)) {
    if (part.early_exits >= kMaxEarlyExits) return true;
  }
  return false;
}

bool HasSupervisor(const Yard& yard) { return ReadPidFile(yard.pid_path("supervisor")).ok(); }

// Gives up early if a supervisor that ran before is gone: it was about to end.
absl::Status WaitUntilReady(const Yard& yard, const StartedYard& started, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (true) {
    const absl::Status status = CheckReady(yard, started.config);
    if (status.ok()) return status;
    const bool lost = started.was_running && !HasSupervisor(yard);
    if (lost || absl::Now() > end || IsHopeless(yard)) return Explain(yard, status);
    absl::SleepFor(absl::Milliseconds(20));  // nothing signals readiness: the API is polled
  }
}

// Takes the yard's lock. Returns an invalid descriptor if a supervisor holds it; waits, at most
// `timeout`, while another `local start` holds it.
absl::StatusOr<FileDescriptor> LockOrSupervisor(const Yard& yard, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (true) {
    absl::StatusOr<FileDescriptor> lock = yard.TryLock();
    if (lock.ok() || !absl::IsUnavailable(lock.status())) return lock;
    if (HasSupervisor(yard)) return FileDescriptor();
    if (absl::Now() > end) return lock.status();
    absl::SleepFor(absl::Milliseconds(20));
  }
}

YardConfig Merge(const StartOptions& options, YardConfig config) {
  if (options.cpu_slots.has_value()) config.cpu_slots = *options.cpu_slots;
  if (options.threads_per_slot.has_value()) config.threads_per_slot = *options.threads_per_slot;
  return config;
}

// Whether a new supervisor may adopt what still runs: the user asks for no other configuration, and
// the server runs or its port is free.
bool MayAdopt(const Yard& yard, const StartOptions& options, const YardConfig& config,
              const YardConfig& before) {
  if (!(config == before) || options.port.has_value() || before.port == 0) return false;
  return ReadPidFile(yard.pid_path("server")).ok() || PortIsFree(INADDR_LOOPBACK, before.port);
}

// Brings up a yard that has no supervisor.
absl::StatusOr<YardConfig> BringUp(const Yard& yard, const StartOptions& options,
                                   FileDescriptor lock) {
  YardConfig before;
  before.context.clear();
  if (yard.Exists()) {
    TY_ASSIGN_OR_RETURN(before, yard.ReadConfig());
  }
  YardConfig config = Merge(options, before);
  config.context = ContextName(options, before, yard.dir());
  if (!MayAdopt(yard, options, config, before)) {
    if (yard.Exists()) StopUnsupervisedProcesses(yard, StopSignalsOnly());
    TY_ASSIGN_OR_RETURN(config.port, ChoosePort(options, before));
  }
  TY_RETURN_IF_ERROR(
      PartsOf(yard, config).status());  // says which program is missing, and writes nothing
  TY_RETURN_IF_ERROR(PrepareFiles(yard, config));
  TY_RETURN_IF_ERROR(StartSupervisor(yard, lock).status());
  return config;
}

}  // namespace

absl::Status CheckReady(const Yard& yard, const YardConfig& config) {
  TY_ASSIGN_OR_RETURN(const std::string token, yard.AdminToken());
  ClientOptions options;
  options.server = absl::StrCat("127.0.0.1:", config.port);
  options.token = token;
  options.call_timeout = absl::Seconds(2);
  options.patience = absl::ZeroDuration();
  Client client(std::move(options));
  TY_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, client.ListNodes({}));
  for (const v1::Node& node : nodes.nodes()) {
    if (node.state() == v1::Node::READY) return absl::OkStatus();
  }
  return absl::UnavailableError("the server answers, but no node is ready");
}

absl::StatusOr<StartedYard> StartYard(const StartOptions& options) {
  TY_RETURN_IF_ERROR(ContextFilePath().status());
  const Yard yard(CanonicalPath(options.dir));
  TY_RETURN_IF_ERROR(PrepareFolder(yard));
  StartedYard started;
  for (int tries = 1;; ++tries) {
    TY_ASSIGN_OR_RETURN(FileDescriptor lock, LockOrSupervisor(yard, options.timeout));
    started.was_running = !lock.valid();
    if (started.was_running) {
      TY_ASSIGN_OR_RETURN(started.config, yard.ReadConfig());
    } else {
      TY_ASSIGN_OR_RETURN(started.config, BringUp(yard, options, std::move(lock)));
    }
    const absl::Status ready = WaitUntilReady(yard, started, options.timeout);
    if (ready.ok()) break;
    if (started.was_running) {
      if (HasSupervisor(yard) || tries == kMostTries) return ready;
      continue;
    }
    (void)StopYard(yard, /*purge=*/false);
    const bool port_was_lost =
        !options.port.has_value() && !PortIsFree(INADDR_LOOPBACK, started.config.port);
    if (!port_was_lost || tries == kMostTries) return ready;
  }
  TY_RETURN_IF_ERROR(SaveContext(yard, started.config));
  return started;
}

}  // namespace trainyard::cli
