#include "clients/cli/local/yard.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "clients/cli/local/postgres.h"
#include "clients/cli/local/stop.h"
#include "clients/cli/programs.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

// libpq's quoting of a value in a connection string.
std::string ConnInfoValue(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

SpawnOptions SpawnOf(const Yard& yard, const std::string& part, std::vector<std::string> argv) {
  SpawnOptions spawn;
  spawn.argv = std::move(argv);
  spawn.log_path = yard.log_path(part);
  spawn.pid_path = yard.pid_path(part);
  spawn.environment = {{kYardVariable, yard.dir()}};
  return spawn;
}

}  // namespace

std::string Yard::socket_dir() const {
  const std::string beside = postgres_dir() + "/socket";
  // sun_path holds 107 characters and a NUL.
  if (beside.size() + sizeof("/.s.PGSQL.5432") <= sizeof(sockaddr_un{}.sun_path)) return beside;
  return absl::StrCat("/tmp/trainyard-", geteuid(), "-", Sha256Hex(dir_).substr(0, 16));
}

bool Yard::Exists() const { return access(config_path().c_str(), F_OK) == 0; }

absl::StatusOr<YardConfig> Yard::ReadConfig() const {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path(), 1 << 16));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(config_path(),
                                            " is damaged; remove the yard with "
                                            "`trainyard local stop --purge`, or restore the file"));
  }
  YardConfig config;
  config.port = json.value("port", 0);
  config.cpu_slots = json.value("cpu_slots", 1);
  config.threads_per_slot = json.value("threads_per_slot", 0);
  config.context = json.value("context", "local");
  return config;
}

absl::Status Yard::WriteConfig(const YardConfig& config) const {
  const nlohmann::json json = {{"port", config.port},
                               {"cpu_slots", config.cpu_slots},
                               {"threads_per_slot", config.threads_per_slot},
                               {"context", config.context}};
  return WriteFileAtomically(config_path(), json.dump(2) + "\n");
}

absl::StatusOr<FileDescriptor> Yard::TryLock() const {
  FileDescriptor lock(open(lock_path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, lock_path());
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(absl::StrCat(lock_path(), " is held"));
  }
  return lock;
}

absl::StatusOr<std::string> Yard::AdminToken() const {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(token_path("admin"), 4096));
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::StatusOr<std::string> DefaultYardDirectory() {
  if (geteuid() == 0) return std::string("/var/lib/trainyard");
  const char* const data = std::getenv("XDG_DATA_HOME");
  if (data != nullptr && data[0] == '/') return absl::StrCat(data, "/trainyard");
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.local/share/trainyard");
  return absl::FailedPreconditionError("HOME is not set; choose a folder with --dir");
}

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  std::filesystem::path real = std::filesystem::weakly_canonical(absolute, error);
  if (error) real = absolute.lexically_normal();
  std::string text = real.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

const std::vector<std::string>& PartNames() {
  static const auto& kNames = *new std::vector<std::string>{"postgres", "server", "agent"};
  return kNames;
}

absl::StatusOr<std::vector<Part>> PartsOf(const Yard& yard, const YardConfig& config) {
  TY_ASSIGN_OR_RETURN(const std::string server, FindProgram("trainyard-server"));
  TY_ASSIGN_OR_RETURN(const std::string agent, FindProgram("trainyard-agent"));
  TY_ASSIGN_OR_RETURN(const std::string worker, FindProgram("trainyard-worker"));
  TY_ASSIGN_OR_RETURN(const Postgres postgres, FindPostgres(yard));
  const std::string address = absl::StrCat("127.0.0.1:", config.port);
  const std::string database =
      absl::StrCat("host=", ConnInfoValue(yard.socket_dir()), " user=trainyard dbname=trainyard");
  std::vector<Part> parts = StopSignalsOnly();
  parts[0].spawn =
      SpawnOf(yard, "postgres",
              {postgres.bin_dir + "/postgres", "-D", yard.data_dir(), "-c",
               "listen_addresses=", "-c", "unix_socket_directories=" + yard.socket_dir(), "-c",
               "unix_socket_permissions=0700", "-c", "logging_collector=off", "-c",
               // After a crash: one sync of the file system, not one of each file.
               "recovery_init_sync_method=syncfs"});
  parts[0].spawn.user = postgres.user;
  parts[1].spawn =
      SpawnOf(yard, "server",
              {server, "--listen", address, "--port-file", yard.port_path(), "--database", database,
               "--token-file", "admin:local:" + yard.token_path("admin"), "--token-file",
               "agent:local-agent:" + yard.token_path("agent"), "--checkpoint-root",
               "file://" + yard.dir() + "/checkpoints"});
  parts[2].spawn =
      SpawnOf(yard, "agent",
              {agent, "--server", address, "--token-file", yard.token_path("agent"), "--state-dir",
               yard.dir() + "/agent", "--cpu-slots", absl::StrCat(config.cpu_slots),
               "--threads-per-slot", absl::StrCat(config.threads_per_slot), "--worker", worker});
  return parts;
}

}  // namespace trainyard::cli
