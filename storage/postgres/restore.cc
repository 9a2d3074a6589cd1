#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <optional>
#include <pqxx/pqxx>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/audit_chain.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"
#include "storage/job_store.h"
#include "storage/postgres/audit_store.h"
#include "storage/postgres/database.h"
#include "storage/postgres/postgres.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"
#include "storage/postgres/writes.h"

namespace trainyard::postgres {
namespace {

// A yard may have a million jobs, and its checkpoints lie on a slow disk.
constexpr absl::Duration kLongestRestore = absl::Hours(6);
constexpr absl::Duration kLookAtLeader = absl::Milliseconds(200);
constexpr size_t kMostNamed = 5;
constexpr int64_t kToldEvery = 1000;  // jobs

struct LeaderSeen {
  std::string holder;
  int64_t beat = 0;
};

LeaderSeen LockTheLeader(Transaction& transaction) {
  const pqxx::row row = transaction.Run(kRestoreLockLeader, Params())[0];
  return {row["holder"].as<std::string>(), row["beat"].as<int64_t>()};
}

// The work of one restore, in one transaction.
class Restorer {
 public:
  Restorer(Transaction& transaction, const RestoreOrder& order)
      : transaction_(transaction), order_(order), now_(Now(transaction)) {}

  absl::StatusOr<RestoreReport> Run() {
    TY_RETURN_IF_ERROR(CheckListsAreOldEnough());
    for (const pqxx::row& row : transaction_.Run(kRestoreLiveJobs, Params())) {
      TY_RETURN_IF_ERROR(RestoreLive(row[0].as<std::string>()));
      ++report_.jobs;
    }
    for (const pqxx::row& row : transaction_.Run(kRestoreEndedJobs, Params())) {
      TY_RETURN_IF_ERROR(RestoreEnded(row[0].as<std::string>()));
    }
    TY_RETURN_IF_ERROR(CheckSomeAreThere());
    report_.epoch = transaction_.Run(kRestoreRaiseEpoch, Params())[0][0].as<int64_t>();
    FenceYard();
    Revoke();
    WriteAudit();
    ReadFolders();
    return std::move(report_);
  }

 private:
  absl::Status CheckListsAreOldEnough() {
    const pqxx::field newest = transaction_.Run(kRestoreNewestAudit, Params())[0][0];
    if (newest.is_null()) return absl::OkStatus();
    const absl::Time point = absl::FromUnixMicros(newest.as<int64_t>());
    if (order_.revoked_since <= point) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("a list of what was revoked was begun at ",
                     absl::FormatTime(absl::RFC3339_sec, order_.revoked_since, absl::UTCTimeZone()),
                     ", and the database has nothing younger than ",
                     absl::FormatTime(absl::RFC3339_sec, point, absl::UTCTimeZone()),
                     ": what was revoked in between is not known; say --revoke-all as well"));
  }

  absl::StatusOr<CheckpointsOfRestored> LookAt(const JobRecord& job) {
    std::vector<CheckpointRecord> recorded;
    for (const pqxx::row& row :
         transaction_.Run(kListCheckpoints, Params(job.uid, int64_t{1} << 40))) {
      recorded.push_back(CheckpointOf(row));
    }
    std::vector<std::string> folders = {order_.folder_of(job)};  // what is there counts first
    std::set<std::string> known = {folders[0]};
    // Servers may have been told another root when these were written. What a copy reads and writes
    // is under its own.
    for (const CheckpointRecord& one : recorded) {
      const std::string folder = one.uri.substr(0, one.uri.rfind('/'));
      if (order_.as != RestoredAs::kCopy && known.insert(folder).second) folders.push_back(folder);
    }
    std::vector<CheckpointRecord> there;
    for (const std::string& folder : folders) {
      TY_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> here, order_.look(folder));
      there.insert(there.end(), here.begin(), here.end());
    }
    CheckpointsOfRestored checkpoints = CompareCheckpoints(job, recorded, there);
    report_.missing_checkpoints += static_cast<int64_t>(checkpoints.missing.size());
    report_.found_checkpoints += static_cast<int64_t>(checkpoints.found.size());
    report_.checkpoints += static_cast<int64_t>(checkpoints.now.size() - checkpoints.found.size());
    if (checkpoints.now.empty() && !recorded.empty() && !IsTerminal(job.state)) {
      const std::string name = FormatJobName({job.project, job.job_id});
      if (order_.forget_checkpoints.count(name) == 0) bare_.push_back(name);
    }
    TellProgress();
    return checkpoints;
  }

  void WriteRows(const std::string& uid, const CheckpointsOfRestored& checkpoints) {
    std::vector<std::string> gone;
    for (const CheckpointRecord& one : checkpoints.missing) gone.push_back(one.uri);
    if (!gone.empty()) transaction_.Run(kRemoveCheckpoints, Params(uid, gone));
    std::vector<CheckpointWritten> written;
    for (const auto* some : {&checkpoints.found, &checkpoints.moved}) {
      for (const CheckpointRecord& one : *some) written.push_back({.checkpoint = one});
    }
    WriteCheckpoints(transaction_, written);
  }

  absl::Status RestoreLive(const std::string& uid) {
    const auto [job, attempt] = LockRanks(transaction_, uid);
    if (!job.has_value()) return absl::OkStatus();
    AttemptChange change{.change = {.job = *job}, .time = now_};
    if (attempt.has_value()) {
      change = FenceRanks(*job, *attempt, order_.as, now_);
      if (change.wishes_changed) ++report_.fenced_jobs;
    }
    TY_ASSIGN_OR_RETURN(const CheckpointsOfRestored checkpoints, LookAt(*job));
    WriteRows(uid, checkpoints);
    const bool ends = IsTerminal(change.change.job.state);
    if (!ends) TakeRestoredCheckpoints(checkpoints, now_, change.change);
    const bool changed = change.wishes_changed || !change.change.feed.empty() ||
                         change.change.job.resize != job->resize ||
                         change.change.job.newest_checkpoint_uri != job->newest_checkpoint_uri;
    if (!changed) return absl::OkStatus();
    TY_RETURN_IF_ERROR((attempt.has_value() ? WriteAttempt(transaction_, *job, *attempt, change)
                                            : WriteJob(transaction_, *job, change.change))
                           .status());
    if (ends) transaction_.Run(kRestoreNewestOfEnded, Params(uid, NewestOf(checkpoints)));
    return absl::OkStatus();
  }

  // The feed of a job that has ended has no more items.
  absl::Status RestoreEnded(const std::string& uid) {
    const std::optional<JobRecord> job = LockJob(transaction_, uid);
    if (!job.has_value() || !IsTerminal(job->state)) return absl::OkStatus();
    TY_ASSIGN_OR_RETURN(const CheckpointsOfRestored checkpoints, LookAt(*job));
    if (checkpoints.unchanged()) return absl::OkStatus();
    WriteRows(uid, checkpoints);
    transaction_.Run(kRestoreNewestOfEnded, Params(uid, NewestOf(checkpoints)));
    return absl::OkStatus();
  }

  static std::string NewestOf(const CheckpointsOfRestored& checkpoints) {
    return checkpoints.now.empty() ? "" : checkpoints.now.back().uri;
  }

  // A folder that is not mounted looks like one in which all are missing.
  absl::Status CheckSomeAreThere() const {
    const bool none =
        report_.checkpoints + report_.found_checkpoints == 0 && report_.missing_checkpoints > 0;
    const bool all = order_.forget_checkpoints.count("all") > 0;
    if (all || (bare_.empty() && !(none && order_.forget_checkpoints.empty()))) {
      return absl::OkStatus();
    }
    std::string of;
    for (size_t i = 0; i < std::min(bare_.size(), kMostNamed); ++i) {
      absl::StrAppend(&of, i == 0 ? " of " : ", ", bare_[i]);
    }
    if (bare_.size() > kMostNamed) {
      absl::StrAppend(&of, " and ", bare_.size() - kMostNamed, " more jobs");
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "none of the checkpoints is there that the database knows", of,
        "; is --checkpoint-root the folder in which servers keep them, and is all of it mounted ",
        "here? If they are lost, say --forget-checkpoints for each of these jobs (or `all`), "
        "which ",
        "then begin anew"));
  }

  void FenceYard() {
    transaction_.Run(kRestoreDeposeLeader, Params(report_.epoch));
    transaction_.Run(kRestoreEndLeases, Params());
    transaction_.Run(kRestoreLoseNodes, Params());
    transaction_.Run(kRestoreForgetLosses, Params());
    if (order_.as != RestoredAs::kCopy) return;
    transaction_.Run(kRestoreForgetLost, Params());
    transaction_.Run(kRestoreEndRequests, Params());
    transaction_.Run(kRestoreNewYard, Params());
  }

  void Revoke() {
    std::map<CredentialKind, std::vector<std::string>> ids;
    for (const RevokedCredential& one : order_.revoked) ids[one.kind].push_back(one.id);
    if (order_.revoke_all) {
      for (const pqxx::row& row : transaction_.Run(kRestoreAllCredentials, Params())) {
        const bool token = row["kind"].as<std::string>() == "token";
        ids[token ? CredentialKind::kToken : CredentialKind::kNodeKey].push_back(
            row["id"].as<std::string>());
      }
    }
    RevokeBy(kRestoreRevokeToken, ids[CredentialKind::kToken]);
    RevokeBy(kRestoreRevokeTokenFiles, ids[CredentialKind::kToken]);
    RevokeBy(kRestoreRevokeNodeKey, ids[CredentialKind::kNodeKey]);
    report_.ended_join_tokens =
        static_cast<int>(transaction_.Run(kRestoreEndJoinTokens, Params()).size());
  }

  void RevokeBy(const Query& query, const std::vector<std::string>& ids) {
    if (ids.empty()) return;
    report_.revoked += static_cast<int>(transaction_.Run(query, Params(ids)).size());
  }

  void WriteAudit() {
    AuditEntry entry{
        .chain = absl::StrCat("restore-", RandomHex(8)),
        .sequence = 1,
        .time = now_,
        .principal = "server:restore",
        .method = "RestoreYard",
        .outcome = "OK",
        .detail = absl::StrCat(
            "epoch ", report_.epoch, order_.as == RestoredAs::kCopy ? ", as a copy of a yard" : "",
            ", ", report_.fenced_jobs, " jobs fenced, ", report_.revoked, " credentials revoked"),
    };
    entry.digest = AuditDigest("", entry);
    AppendEntries(transaction_, {entry});
  }

  void ReadFolders() {
    JobRecord named;
    for (const pqxx::row& row : transaction_.Run(kRestoreNamesOfJobs, Params())) {
      named.uid = row["uid"].as<std::string>();
      named.project = row["project"].as<std::string>();
      named.job_id = row["job_id"].as<std::string>();
      report_.job_folders.push_back(order_.folder_of(named));
    }
    std::sort(report_.job_folders.begin(), report_.job_folders.end());
  }

  void TellProgress() {
    if (++looked_at_ % kToldEvery == 0) spdlog::info("looked at {} jobs", looked_at_);
  }

  Transaction& transaction_;
  const RestoreOrder& order_;
  const absl::Time now_;
  RestoreReport report_;
  std::vector<std::string>
      bare_;  // jobs that have not ended and of whose checkpoints none is there
  int64_t looked_at_ = 0;
};

// Waits until the leader's lease has stood still for `order.leader_is_gone`.
absl::Status CheckNobodyLeads(Database& database, const RestoreOrder& order) {
  const auto look = [&] {
    return database.Run("look who leads",
                        [](Transaction& transaction) -> absl::StatusOr<LeaderSeen> {
                          return LockTheLeader(transaction);
                        });
  };
  TY_ASSIGN_OR_RETURN(const LeaderSeen first, look());
  const absl::Time until = absl::Now() + order.leader_is_gone;
  while (!first.holder.empty() && absl::Now() < until) {
    absl::SleepFor(kLookAtLeader);
    TY_ASSIGN_OR_RETURN(const LeaderSeen seen, look());
    if (seen.holder == first.holder && seen.beat == first.beat) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "a server works on this database (", seen.holder.empty() ? first.holder : seen.holder,
        "): stop all of them first"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RestoreReport> Restore(const std::string& conninfo, const RestoreOrder& order) {
  Options options;
  options.application_name = "trainyard-restore";
  options.statement_timeout = kLongestRestore;
  options.idle_in_transaction_timeout = kLongestRestore;
  TY_ASSIGN_OR_RETURN(const std::string complete, CompleteConninfo(conninfo, options));
  Database database(complete, 1, absl::InfiniteDuration());
  TY_RETURN_IF_ERROR(CheckNobodyLeads(database, order));
  TY_RETURN_IF_ERROR(Migrate(conninfo));
  return database.Run("restore the yard",
                      [&](Transaction& transaction) -> absl::StatusOr<RestoreReport> {
                        LockTheLeader(transaction);
                        return Restorer(transaction, order).Run();
                      });
}

}  // namespace trainyard::postgres
