#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "clients/cli/local/process.h"

namespace trainyard::cli {

class Yard;

struct Postgres {
  std::string bin_dir;
  std::optional<User> user;  // PostgreSQL refuses to run as root: whom to become then
};

// The installed PostgreSQL: the version that the yard's data were made with, else the newest.
// kFailedPrecondition says what to install.
absl::StatusOr<Postgres> FindPostgres(const Yard& yard);

// Makes the yard's database (user and database "trainyard", reached by its socket alone) unless it
// is there. All or nothing: a call that was interrupted is repeated from the start.
absl::Status PrepareDatabase(const Yard& yard);

// Removes a postmaster.pid whose pid now belongs to some other program, which would keep PostgreSQL
// from starting.
void RemoveStalePostmasterPid(const Yard& yard);

}  // namespace trainyard::cli
