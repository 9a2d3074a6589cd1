#include "server/auth/revocation_list.h"

#include <spdlog/spdlog.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {

absl::Status RevocationList::Begin() {
  if (path_.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    if (ParseRevocationsBegunLine(line).has_value()) return absl::OkStatus();
  }
  return Annotate(AppendLine(path_, RevocationsBegunLine(clock_.Now())), "--revocations");
}

absl::Status RevocationList::Keep(const RevokedCredential& revoked) {
  if (path_.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  const absl::Status kept = AppendLine(path_, RevocationLine(revoked, clock_.Now()));
  if (kept.ok()) return kept;
  spdlog::error("what was revoked is not written down: {}", kept.ToString());
  return absl::UnavailableError(absl::StrCat(
      "it is revoked, but the server could not write that down for a restore from a backup (",
      kept.message(), "); try again once it can"));
}

}  // namespace trainyard
