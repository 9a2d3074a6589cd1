#include "storage/postgres/change_reader.h"

#include <algorithm>
#include <pqxx/pqxx>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/call_limit.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"

namespace trainyard::postgres {
namespace {

constexpr absl::Duration kLongestTurn = absl::Seconds(2);

// "TIMELINE/LOSSES XMIN:XMAX:XIP,…": the history that the position belongs to, and the snapshot as
// PostgreSQL writes it.
struct Position {
  std::string history;
  std::string snapshot;

  static Position Of(const ChangePosition& text) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits(' ', 1));
    return {std::string(parts.first), std::string(parts.second)};
  }
  ChangePosition Text() const { return absl::StrCat(history, " ", snapshot); }

  // The lowest number of a transaction that this snapshot surely does not see.
  uint64_t xmax() const {
    const std::vector<absl::string_view> parts = absl::StrSplit(snapshot, ':');
    uint64_t xmax = 0;
    return parts.size() == 3 && absl::SimpleAtoi(parts[1], &xmax) ? xmax : 0;
  }
};

void ReadSlotLimits(const pqxx::result& rows, SnapshotChanges& changes) {
  for (const pqxx::row& row : rows) {
    const pqxx::field limit = row[1];
    changes.slot_limits.emplace_back(
        row[0].as<std::string>(),
        limit.is_null() ? std::nullopt : std::optional<int>(limit.as<int>()));
  }
}

void ReadAll(Transaction& transaction, SnapshotChanges& changes) {
  changes.whole = true;
  for (const pqxx::row& row : transaction.RunText(kAllLiveJobs.text, Params())) {
    changes.jobs.push_back(JobOf(row));
  }
  changes.attempts = AttemptsOf(transaction.RunText(kAllLiveAttempts.text, Params()));
  changes.nodes = AllNodesOf(transaction.Run(kListNodes, Params()));
  ReadSlotLimits(transaction.Run(kAllSlotLimits, Params()), changes);
}

void ReadJobs(Transaction& transaction, const std::string& since, SnapshotChanges& changes) {
  std::unordered_set<std::string> uids;
  for (const pqxx::row& row : transaction.Run(kChangedJobs, Params(since))) {
    uids.insert(row[0].as<std::string>());
  }
  if (uids.empty()) return;
  const Params all(std::vector<std::string>(uids.begin(), uids.end()));
  std::vector<std::string> holders;
  for (const pqxx::row& row : transaction.Run(kSomeLiveJobs, all)) {
    JobRecord job = JobOf(row);
    uids.erase(job.uid);
    if (HoldsSlots(job.state)) holders.push_back(job.uid);
    changes.jobs.push_back(std::move(job));
  }
  changes.gone.assign(uids.begin(), uids.end());
  if (holders.empty()) return;
  changes.attempts = AttemptsOf(transaction.Run(kDesiredAttempts, Params(holders)));
}

}  // namespace

absl::StatusOr<SnapshotChanges> ReadChangesIn(Transaction& transaction, int64_t losses,
                                              const ChangePosition& since, bool leases) {
  SnapshotChanges changes;
  const pqxx::row here = transaction.Run(kReadPosition, Params())[0];
  const Position position{absl::StrCat(here["timeline"].c_str(), "/", losses),
                          here["snapshot"].c_str()};
  changes.position = position.Text();
  changes.now = absl::FromUnixMicros(here["now"].as<int64_t>());
  const Position before = Position::Of(since);
  if (before.snapshot.empty() || before.history != position.history ||
      before.xmax() > position.xmax()) {
    ReadAll(transaction, changes);
  } else {
    ReadJobs(transaction, before.snapshot, changes);
    changes.nodes = AllNodesOf(transaction.Run(kChangedNodes, Params(before.snapshot)));
    ReadSlotLimits(transaction.Run(kChangedSlotLimits, Params(before.snapshot)), changes);
  }
  if (leases) {
    changes.leases.emplace();
    for (const pqxx::row& row : transaction.Run(kReadLeases, Params())) {
      LeaseState& lease = changes.leases->emplace_back();
      lease.node = row[0].as<std::string>();
      lease.beat = row[1].as<int64_t>();
      lease.report = ReportOf(row);
    }
  }
  return changes;
}

absl::StatusOr<SchedulerSnapshot> SnapshotReader::ReadJobs(Transaction& transaction,
                                                           int64_t losses) {
  // The thread that reads may hang on a silent database: others wait for it no longer than their
  // own call may take.
  const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_mu_) { return !reading_; };
  {
    absl::MutexLock turn(&turn_mu_);
    if (!turn_mu_.AwaitWithTimeout(absl::Condition(&free),
                                   std::min(CurrentCallLimit(), kLongestTurn))) {
      return absl::UnavailableError("read snapshot: another is being read and does not end");
    }
    reading_ = true;
  }
  const absl::Cleanup end_of_turn = [this] {
    absl::MutexLock turn(&turn_mu_);
    reading_ = false;
  };
  absl::MutexLock lock(&mu_);
  const absl::Duration now = SystemClock().SinceBoot();
  const bool anew = now - read_ > SchedulerStore::kOldestPosition / 2;
  TY_ASSIGN_OR_RETURN(
      SnapshotChanges changes,
      ReadChangesIn(transaction, losses, anew ? ChangePosition() : fold_.position(), false));
  fold_.Fold(std::move(changes));
  fold_.nodes().clear();  // not kept: ReadSnapshot reads all nodes each time
  read_ = now;
  return fold_.Jobs();
}

}  // namespace trainyard::postgres
