#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/restore.h"

namespace trainyard {

struct RestoreFlags {
  std::string database;
  std::string checkpoint_root;                // a URI, file:///…
  std::vector<std::string> revocation_files;  // as servers wrote them (--revocations)
  bool revoke_all = false;
  bool copy = false;
  std::vector<std::string> forget_checkpoints;
};

// Restores the yard (postgres::Restore), and returns what was done in words for an operator.
absl::StatusOr<std::string> RestoreYard(const RestoreFlags& flags);

}  // namespace trainyard
