#include "storage/postgres/queue_reader.h"

#include <algorithm>
#include <iterator>
#include <pqxx/pqxx>
#include <unordered_set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "storage/base/clock.h"
#include "storage/call_limit.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"

namespace trainyard::postgres {
namespace {

constexpr absl::Duration kCompareEvery = absl::Seconds(10);
constexpr absl::Duration kLongestTurn = absl::Seconds(2);
constexpr size_t kMostByUid = 1000;  // more are read with the whole queue

bool Precedes(const std::shared_ptr<const JobRecord>& a,
              const std::shared_ptr<const JobRecord>& b) {
  return RunsBefore(*a, *b);
}

// Whether the row is of a job as it is known. Columns: uid, version, reason_code, reason_message.
bool Same(const JobRecord& known, const pqxx::row& row) {
  return known.version == row[1].as<int64_t>() && known.reason.code == row[2].c_str() &&
         known.reason.message == row[3].c_str();
}

}  // namespace

struct QueueReader::Changes {
  std::vector<std::string> gone;   // or changed
  std::vector<JobRecord> waiting;  // new or changed
};

QueueReader::Changes QueueReader::ReadChanged(Transaction& transaction, const std::string& since) {
  Changes changes;
  std::vector<std::string> wanted;
  for (const pqxx::row& row : transaction.RunText(kChangedJobs.text, Params(since))) {
    std::string uid = row[0].as<std::string>();
    const auto known = by_uid_.find(uid);
    const bool waits = row[4].as<bool>();
    if (waits && known != by_uid_.end() && Same(*known->second, row)) continue;
    if (known != by_uid_.end()) changes.gone.push_back(uid);
    if (waits) wanted.push_back(std::move(uid));
  }
  if (wanted.empty()) return changes;
  for (const pqxx::row& row : transaction.RunText(kSnapshotSomeJobs.text, Params(wanted))) {
    changes.waiting.push_back(JobOf(row));
  }
  return changes;
}

QueueReader::Changes QueueReader::CompareAll(Transaction& transaction) {
  Changes changes;
  std::vector<std::string> wanted;
  std::unordered_set<std::string> seen;
  for (const pqxx::row& row : transaction.RunText(kSnapshotQueue.text, Params())) {
    std::string uid = row[0].as<std::string>();
    const auto known = by_uid_.find(uid);
    if (known == by_uid_.end() || !Same(*known->second, row)) {
      if (known != by_uid_.end()) changes.gone.push_back(uid);
      wanted.push_back(uid);
    }
    seen.insert(std::move(uid));
  }
  for (const auto& [uid, job] : by_uid_) {
    if (seen.count(uid) == 0) changes.gone.push_back(uid);
  }
  if (wanted.size() > kMostByUid) {
    changes.gone.clear();
    for (const auto& [uid, job] : by_uid_) changes.gone.push_back(uid);
    for (const pqxx::row& row : transaction.RunText(kSnapshotQueuedJobs.text, Params())) {
      changes.waiting.push_back(JobOf(row));
    }
  } else if (!wanted.empty()) {
    for (const pqxx::row& row : transaction.RunText(kSnapshotSomeJobs.text, Params(wanted))) {
      changes.waiting.push_back(JobOf(row));
    }
  }
  return changes;
}

void QueueReader::Fold(Changes changes) {
  if (changes.gone.empty() && changes.waiting.empty()) return;
  std::unordered_set<const JobRecord*> gone;
  for (const std::string& uid : changes.gone) {
    const auto known = by_uid_.find(uid);
    if (known == by_uid_.end()) continue;
    gone.insert(known->second.get());
    by_uid_.erase(known);
  }
  WaitingJobs added;
  for (JobRecord& job : changes.waiting) {
    added.push_back(std::make_shared<const JobRecord>(std::move(job)));
    by_uid_[added.back()->uid] = added.back();
  }
  std::sort(added.begin(), added.end(), Precedes);
  auto merged = std::make_shared<WaitingJobs>();
  merged->reserve(in_order_->size() + added.size());
  auto next = added.begin();
  for (const auto& job : *in_order_) {
    if (gone.count(job.get()) > 0) continue;
    while (next != added.end() && Precedes(*next, job)) merged->push_back(std::move(*next++));
    merged->push_back(job);
  }
  merged->insert(merged->end(), std::make_move_iterator(next),
                 std::make_move_iterator(added.end()));
  in_order_ = std::move(merged);
}

void QueueReader::Doubt() {
  absl::MutexLock lock(&mu_);
  compared_ = -absl::InfiniteDuration();
}

absl::StatusOr<std::shared_ptr<const WaitingJobs>> QueueReader::Read(Transaction& transaction) {
  // Whoever reads may hang on a database that is silent: nobody waits for that longer than a call
  // may take.
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
  const bool compare = since_.empty() || now - compared_ >= kCompareEvery;
  // In the same snapshot as what is read below.
  std::string since = transaction.Run(kOldestRunning, Params())[0][0].as<std::string>();
  Fold(compare ? CompareAll(transaction) : ReadChanged(transaction, since_));
  since_ = std::move(since);
  if (compare) compared_ = now;
  return in_order_;
}

}  // namespace trainyard::postgres
