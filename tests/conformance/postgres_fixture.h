#pragma once

// A PostgreSQL of one's own for tests: in a temporary folder, reached over a Unix socket only,
// without fsync unless asked for, gone with the test's process however that ends. Works as root
// (the server runs as user postgres) and as an ordinary user.

#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trainyard::testing {

// Not thread-safe. Start it on the main thread: the server dies with the thread that started it.
class PostgresFixture {
 public:
  struct Options {
    bool fsync = false;
    std::vector<std::string> settings;  // e.g. "max_connections=10"
  };
  static absl::StatusOr<std::unique_ptr<PostgresFixture>> Start(const Options& options);
  static absl::StatusOr<std::unique_ptr<PostgresFixture>> Start() { return Start(Options()); }
  ~PostgresFixture();
  PostgresFixture(const PostgresFixture&) = delete;
  PostgresFixture& operator=(const PostgresFixture&) = delete;

  // For libpq; superuser trainyard.
  std::string Conninfo(const std::string& database = "postgres") const;

  absl::Status CreateDatabase(const std::string& name, const std::string& from = "template1");
  absl::Status DropDatabase(const std::string& name);

  // What psql prints for `sql`, unaligned, without the last newline.
  absl::StatusOr<std::string> Query(const std::string& database, const std::string& sql) const;

  absl::Status StopImmediately();  // as after a crash
  absl::Status StartAgain();

  // SIGSTOP and SIGCONT to all of its processes: connections are still accepted, by the kernel, and
  // nothing is ever answered.
  absl::Status Freeze() const { return SignalAll(SIGSTOP); }
  absl::Status Thaw() const { return SignalAll(SIGCONT); }

 private:
  PostgresFixture() = default;
  absl::Status SignalAll(int signal) const;

  std::string folder_;
  std::string binaries_;
  Options options_;
  pid_t server_ = -1;
};

}  // namespace trainyard::testing
