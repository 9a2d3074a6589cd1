#include "server/restore/restore.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/fleet/assignment.h"
#include "server/restore/checkpoint_folders.h"
#include "storage/base/audit_chain.h"
#include "storage/base/ids.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "storage/postgres/postgres.h"

namespace trainyard {
namespace {

constexpr size_t kMostFoldersTold = 20;

// Each may be named in several files: one for each server.
absl::StatusOr<std::vector<RevokedCredential>> ReadRevocations(
    const std::vector<std::string>& paths) {
  std::vector<RevokedCredential> revoked;
  for (const std::string& path : paths) {
    std::ifstream file(path);
    if (!file) return absl::NotFoundError(absl::StrCat("--revocations ", path, ": cannot be read"));
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      std::optional<RevokedCredential> one = ParseRevocationLine(line);
      if (one.has_value()) {
        revoked.push_back(*std::move(one));
      } else if (!line.empty()) {  // a server that was killed may have left half of one
        spdlog::warn("{}, line {} is no revocation, as --revocations of trainyard-server writes it",
                     path, number);
      }
    }
    if (file.bad()) return absl::DataLossError(absl::StrCat(path, ": cannot be read to its end"));
  }
  return revoked;
}

std::string Counted(int64_t number, const std::string& what) {
  return absl::StrCat(number, " ", what, number == 1 ? "" : "s");
}

std::string Summary(const RestoreReport& report) {
  return absl::StrCat("The yard is restored; its epoch is ", report.epoch, ".\n",
                      Counted(report.jobs, "job"), " that had not ended; ", report.fenced_jobs,
                      " of them ran, and will go on.\n", Counted(report.checkpoints, "checkpoint"),
                      " that the database knew ", report.checkpoints == 1 ? "is" : "are",
                      " there, ", report.missing_checkpoints, " are missing; ",
                      report.found_checkpoints, " that it did not know were found.\n",
                      Counted(report.revoked, "credential"), " revoked.\n");
}

// Of jobs that were submitted after the backup, or deleted before it.
absl::StatusOr<std::string> FoldersOfNoJob(const std::string& root, const RestoreReport& report) {
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListJobFolders(root));
  std::string text;
  size_t unknown = 0;
  for (const std::string& folder : folders) {
    if (std::binary_search(report.job_folders.begin(), report.job_folders.end(), folder)) continue;
    if (++unknown <= kMostFoldersTold) absl::StrAppend(&text, "  ", Printable(folder), "\n");
  }
  if (unknown == 0) return text;
  if (unknown > kMostFoldersTold) {
    absl::StrAppend(&text, "  and ", unknown - kMostFoldersTold, " more\n");
  }
  return absl::StrCat(
      "Folders with checkpoints of jobs that this database does not know, since they ",
      "were submitted after the backup:\n", text);
}

absl::Status WriteAudit(const RestoreFlags& flags, const RestoreReport& report) {
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<Stores> stores,
                      postgres::Open(flags.database, {.application_name = "trainyard-restore"}));
  AuditEntry entry{
      .chain = absl::StrCat("restore-", RandomHex(8)),
      .sequence = 1,
      .time = absl::FromUnixMicros(absl::ToUnixMicros(absl::Now())),
      .principal = kRestorer,
      .method = kRestoreMethod,
      .outcome = "OK",
      .detail = absl::StrCat("epoch ", report.epoch, flags.copy ? ", as a copy of a yard" : "",
                             ", ", report.fenced_jobs, " jobs fenced, ", report.revoked,
                             " credentials revoked"),
  };
  entry.digest = AuditDigest("", entry);
  return stores->audit().AppendAudit({entry});
}

}  // namespace

absl::StatusOr<std::string> RestoreYard(const RestoreFlags& flags) {
  RestoreOrder order{.as = flags.copy ? RestoredAs::kCopy : RestoredAs::kTheYard,
                     .revoke_all = flags.revoke_all || flags.copy,
                     .look = LookAtCheckpoints,
                     .forget_checkpoints = flags.forget_checkpoints};
  order.folder_of = [&flags](const JobRecord& job) {
    return CheckpointRootOf(job, flags.checkpoint_root);
  };
  TY_ASSIGN_OR_RETURN(order.revoked, ReadRevocations(flags.revocation_files));
  TY_RETURN_IF_ERROR(postgres::Migrate(flags.database));
  TY_ASSIGN_OR_RETURN(const RestoreReport report, postgres::Restore(flags.database, order));
  TY_RETURN_IF_ERROR(WriteAudit(flags, report));
  const absl::StatusOr<std::string> folders = FoldersOfNoJob(flags.checkpoint_root, report);
  if (!folders.ok()) spdlog::warn("{}", folders.status().ToString());
  return absl::StrCat(Summary(report), folders.ok() ? *folders : "");
}

}  // namespace trainyard
