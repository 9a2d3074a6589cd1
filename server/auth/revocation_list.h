#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"
#include "storage/base/revocation.h"

namespace trainyard {

// The file in which this server writes down what its callers revoke, for a database that is
// restored from a backup (server/restore). Thread-safe.
class RevocationList {
 public:
  // Without a path nothing is written down.
  RevocationList(std::string path, Clock& clock) : path_(std::move(path)), clock_(clock) {}

  // Writes into a file that is not there yet since when it is kept. Call it before the first call
  // is taken.
  absl::Status Begin();

  // Call it once the store has it, and before the caller is answered: durable when this returns OK.
  // If it fails the caller is told so, and tries again.
  absl::Status Keep(const RevokedCredential& revoked);

 private:
  const std::string path_;
  Clock& clock_;
  absl::Mutex mu_;  // one line after the other
};

}  // namespace trainyard
