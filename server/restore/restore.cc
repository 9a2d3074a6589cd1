#include "server/restore/restore.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/fleet/assignment.h"
#include "server/restore/checkpoint_folders.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "storage/postgres/postgres.h"

namespace trainyard {
namespace {

constexpr size_t kMostFoldersTold = 20;

// Adds what the files say that servers wrote. Each revocation may be in several of them.
absl::Status ReadRevocations(const std::vector<std::string>& paths, RestoreOrder& order) {
  if (!paths.empty()) order.revoked_since = absl::InfiniteFuture();
  for (const std::string& path : paths) {
    std::ifstream file(path);
    if (!file) return absl::NotFoundError(absl::StrCat("--revocations ", path, ": cannot be read"));
    int number = 0;
    bool begun = false;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (const std::optional<absl::Time> since = ParseRevocationsBegunLine(line)) {
        if (!begun) order.revoked_since = std::min(order.revoked_since, *since);
        begun = true;
      } else if (std::optional<RevokedCredential> one = ParseRevocationLine(line)) {
        order.revoked.push_back(*std::move(one));
      } else if (!line.empty()) {  // a server that was killed may have left half of one
        spdlog::warn("{}, line {} is no revocation, as --revocations of trainyard-server writes it",
                     path, number);
      }
    }
    if (file.bad()) return absl::DataLossError(absl::StrCat(path, ": cannot be read to its end"));
    if (!begun && !order.revoke_all) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--revocations ", path, ": does not say since when it is kept, as the first line of ",
          "what trainyard-server writes does"));
    }
  }
  // All are revoked: it does not matter which were.
  if (order.revoke_all) order.revoked_since = absl::InfinitePast();
  return absl::OkStatus();
}

std::string Counted(int64_t number, const std::string& what) {
  return absl::StrCat(number, " ", what, number == 1 ? "" : "s");
}

std::string Summary(const RestoreReport& report) {
  return absl::StrCat("The yard is restored; its epoch is ", report.epoch, ".\n",
                      Counted(report.jobs, "job"), " that had not ended; of ", report.fenced_jobs,
                      " what ran is fenced.\n", Counted(report.checkpoints, "checkpoint"),
                      " that the database knew ", report.checkpoints == 1 ? "is" : "are",
                      " there, ", report.missing_checkpoints, " are missing; ",
                      report.found_checkpoints, " that it did not know were found.\n",
                      Counted(report.revoked, "credential"), " revoked, and ",
                      Counted(report.ended_join_tokens, "join token"), ".\n");
}

std::string FoldersOfNoJob(const std::vector<std::string>& folders, const RestoreReport& report) {
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
      "Folders of jobs that this database does not know, since they were submitted ",
      "after the backup or deleted before it:\n", text);
}

}  // namespace

absl::StatusOr<std::string> RestoreYard(const RestoreFlags& flags) {
  RestoreOrder order{
      .as = flags.copy ? RestoredAs::kCopy : RestoredAs::kTheYard,
      .revoke_all = flags.revoke_all || flags.copy,
      .look = LookAtCheckpoints,
      .forget_checkpoints = {flags.forget_checkpoints.begin(), flags.forget_checkpoints.end()}};
  order.folder_of = [&flags](const JobRecord& job) {
    return CheckpointRootOf(job, flags.checkpoint_root);
  };
  TY_RETURN_IF_ERROR(ReadRevocations(flags.revocation_files, order));
  const absl::StatusOr<std::vector<std::string>> folders = ListJobFolders(flags.checkpoint_root);
  if (!folders.ok()) return Annotate(folders.status(), "--checkpoint-root");
  TY_ASSIGN_OR_RETURN(const RestoreReport report, postgres::Restore(flags.database, order));
  return absl::StrCat(Summary(report), FoldersOfNoJob(*folders, report));
}

}  // namespace trainyard
