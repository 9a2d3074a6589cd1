#pragma once

// All stores over one PostgreSQL database, through libpqxx.

#include <climits>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/restore.h"
#include "storage/stores.h"

namespace trainyard::postgres {

struct Options {
  std::string application_name = "trainyard";  // shown in pg_stat_activity
  int max_connections = 8;        // for transactions; wake-ups and leases take five more
  int max_agent_connections = 4;  // of their own, for what agents report
  absl::Duration statement_timeout = absl::Seconds(20);
  // A server that is cut off between two statements of a transaction keeps the locks of the first
  // for so long: until then nobody else places its jobs or registers its nodes.
  absl::Duration idle_in_transaction_timeout = absl::Seconds(3);
  // A call that takes longer than this loses its connection, whatever the server does; a CallLimit
  // (storage/call_limit.h) may be shorter. PostgreSQL's own timeouts come first while it is alive.
  absl::Duration longest_call = absl::Seconds(25);
  absl::Duration longest_agent_call = absl::Seconds(10);
};

// Brings the database's tables up to what this program knows: each migration in a transaction of
// its own, under a lock, so that any number of programs may call it at once. kFailedPrecondition:
// the database is newer than this program and does not say that it works with it, or a migration
// was changed after it was applied.
// kUnavailable: the database is away, or somebody uses a table that a migration changes for longer
// than the migration waits; nothing is half done, try again. Idempotent.
// `last`: the version to stop at, for tests of what the next migration does to rows.
absl::Status Migrate(const std::string& conninfo, int last = INT_MAX);

// The newest migration that this program knows.
int SchemaVersion();

// Makes a database that was restored from a backup one that servers may work on: what ran then is
// fenced, jobs go on from checkpoints that exist, what was revoked since is revoked again, and the
// yard's epoch is raised. All of it or nothing, but for migrations, which come first.
// kFailedPrecondition: a server works on it, no checkpoint is there that it knows of some job, or
// the lists of what was revoked are too young.
absl::StatusOr<RestoreReport> Restore(const std::string& conninfo, const RestoreOrder& order);

// `conninfo`: libpq's key=value words or URI. Opens no connection before it is needed: a database
// that is away makes methods fail with kUnavailable until it is back, and nothing else.
// kInvalidArgument: a conninfo that libpq cannot read.
absl::StatusOr<std::unique_ptr<Stores>> Open(const std::string& conninfo,
                                             const Options& options = {});

}  // namespace trainyard::postgres
