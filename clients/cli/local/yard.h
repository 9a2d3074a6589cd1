#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/cli/local/process.h"

namespace trainyard::cli {

// What a yard was started with; kept in DIR/yard.json, which also marks the folder as a yard.
struct YardConfig {
  int port = 0;  // 0: none chosen yet
  int cpu_slots = 1;
  int threads_per_slot = 0;  // 0: cores / slots
  std::string context;       // name under which it is saved

  friend bool operator==(const YardConfig&, const YardConfig&) = default;
};

// A local yard on disk. DIR/
//
//   yard.json          the configuration, and the mark of a yard
//   lock               held by the supervisor, or by `local start` before it hands it over
//   tokens/            admin (for the user) and agent, mode 0600
//   postgres/data      the database, owned by user postgres when root starts the yard
//   postgres/socket    its Unix socket (elsewhere when the path would be too long)
//   agent/ checkpoints/
//   logs/              supervisor.log, postgres.log, server.log, agent.log
//   run/               pid files, server.port, state.json: what the supervisor did
class Yard {
 public:
  explicit Yard(std::string dir) : dir_(std::move(dir)) {}

  const std::string& dir() const { return dir_; }
  std::string config_path() const { return dir_ + "/yard.json"; }
  std::string lock_path() const { return dir_ + "/lock"; }
  std::string token_path(const std::string& role) const { return dir_ + "/tokens/" + role; }
  std::string postgres_dir() const { return dir_ + "/postgres"; }
  std::string data_dir() const { return postgres_dir() + "/data"; }
  std::string socket_dir() const;  // short enough for a socket
  std::string log_path(const std::string& part) const { return dir_ + "/logs/" + part + ".log"; }
  std::string pid_path(const std::string& part) const { return dir_ + "/run/" + part + ".pid"; }
  std::string state_path() const { return dir_ + "/run/state.json"; }
  std::string port_path() const { return dir_ + "/run/server.port"; }

  bool Exists() const;
  absl::StatusOr<YardConfig> ReadConfig() const;
  absl::Status WriteConfig(const YardConfig& config) const;

  // The lock, or kUnavailable when somebody holds it.
  absl::StatusOr<FileDescriptor> TryLock() const;

  // The user's token.
  absl::StatusOr<std::string> AdminToken() const;

 private:
  const std::string dir_;
};

// Environment variable that every process of a yard carries, so that all of them can be found.
inline constexpr char kYardVariable[] = "TRAINYARD_YARD";

// ~/.local/share/trainyard (XDG_DATA_HOME is respected); /var/lib/trainyard for root, whose home
// user postgres may not enter.
absl::StatusOr<std::string> DefaultYardDirectory();

// `path` made absolute, with symbolic links resolved as far as it exists.
std::string CanonicalPath(const std::string& path);

// One part of a yard: how to start and stop it.
struct Part {
  std::string name;
  SpawnOptions spawn;
  std::vector<std::pair<int, absl::Duration>> stop_signals;
};

// postgres, server, agent, in the order of starting; they are stopped in reverse.
absl::StatusOr<std::vector<Part>> PartsOf(const Yard& yard, const YardConfig& config);

// Names of the parts, without looking for programs.
const std::vector<std::string>& PartNames();

}  // namespace trainyard::cli
