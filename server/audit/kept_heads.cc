#include "server/audit/kept_heads.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "storage/base/audit_chain.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr std::streamoff kTail = 64 << 10;  // a line takes some 200 bytes

std::optional<AuditHead> LastHead(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  if (!file || size <= 0) return std::nullopt;
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::optional<AuditHead> last;
  for (std::string line; std::getline(file, line);) {
    if (std::optional<AuditHead> head = ParseAuditHeadLine(line)) last = std::move(head);
  }
  return last;
}

}  // namespace

absl::Status CheckKeptHeads(const std::string& heads_file, AuditStore& store, int64_t epoch) {
  if (heads_file.empty()) return absl::OkStatus();
  const std::optional<AuditHead> head = LastHead(heads_file);
  if (!head.has_value() || head->epoch < epoch) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(
      const std::vector<AuditEntry> there,
      store.ListAudit({.by_chain = true, .chain = head->chain, .sequence = head->sequence - 1}, 1));
  if (!there.empty() && there[0].chain == head->chain && there[0].sequence == head->sequence &&
      there[0].digest == head->digest) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the database is older than what a server wrote to ", heads_file, ": it does not have entry ",
      head->sequence, " of chain ", head->chain,
      " of the audit. If it was restored from a backup, ",
      "run `trainyard-server restore` first; if this is another yard, give it another file"));
}

}  // namespace trainyard
