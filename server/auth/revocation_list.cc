#include "server/auth/revocation_list.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {

absl::Status RevocationList::Begin() {
  if (path_.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  struct stat info;
  if (stat(path_.c_str(), &info) == 0 && info.st_size > 0) return absl::OkStatus();
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
