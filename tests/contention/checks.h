#pragma once

// What must hold in the database at any moment, whoever writes: asked in SQL, not of the store.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/conformance/postgres_fixture.h"

namespace trainyard::testing {

// In one statement, so of one moment. Each line names what is broken and how many rows show it.
absl::StatusOr<std::string> BrokenInvariants(const PostgresFixture& postgres);

// From here on every update of a row of `jobs` is counted.
absl::Status CountUpdates(const PostgresFixture& postgres);
struct Updates {
  int64_t told = 0;       // of what a job waits for, and of nothing else
  int64_t told_most = 0;  // of one job
  int64_t others = 0;     // jobs that moved
};
absl::StatusOr<Updates> CountedUpdates(const PostgresFixture& postgres);

// Lines of PostgreSQL's log since it started that tell of a lock that was waited for for longer
// than a second, or of a deadlock.
absl::StatusOr<std::string> LongWaits(const PostgresFixture& postgres);

}  // namespace trainyard::testing
