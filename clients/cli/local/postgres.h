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

// Removes the lock files of a server that is gone: PostgreSQL itself believes them as long as any
// process, even a zombie, has the pid that they name. They stay while any back end works in the
// data folder, since they are what keeps a second server out.
void RemoveStaleLockFiles(const Yard& yard);

}  // namespace trainyard::cli
