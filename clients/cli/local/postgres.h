#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "clients/cli/local/process.h"

namespace trainyard::cli {

class Yard;

struct Postgres {
  std::string bin_dir;
  std::optional<User> user;  // whom to become if we are root, as whom PostgreSQL refuses to run
};

// The installed PostgreSQL: the version that the yard's data were made with, else the newest.
// kFailedPrecondition says what to install.
absl::StatusOr<Postgres> FindPostgres(const Yard& yard);

// Makes the yard's database (user and database "trainyard", reachable only by its Unix socket)
// unless it is there. A call that was interrupted leaves no database; the next one starts anew.
absl::Status PrepareDatabase(const Yard& yard);

// Removes the lock files of a server that is gone: PostgreSQL itself believes them as long as any
// process, even a zombie, has the pid that they name. They stay while any back end works in the
// data folder, since they are what keeps a second server out.
void RemoveStaleLockFiles(const Yard& yard);

}  // namespace trainyard::cli
