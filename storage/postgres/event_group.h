#pragma once

// The events of many ranks in one transaction: a statement per table, whatever their number.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/fleet_store.h"
#include "storage/postgres/database.h"
#include "storage/postgres/metric_reads.h"
#include "storage/records/change.h"

namespace trainyard::postgres {

// Applies the entries of one group in their order, each to what those before it made of its job,
// and then writes the results of all. Locks jobs in the order of their uids, as all do who lock
// several.
class EventGroup {
 public:
  EventGroup(Transaction& transaction, const std::vector<RankEvents>& group)
      : transaction_(transaction), group_(group) {}

  // Answers by entry; a refused entry changes nothing. kAborted: something changed under its lock,
  // and nothing may be committed.
  absl::StatusOr<std::vector<absl::StatusOr<AppendResult>>> Append();

 private:
  struct JobAtWork {
    JobRecord before;
    AttemptRecord attempt_before;  // attempt 0: it has none
    JobChange change;              // all that its entries made of it so far
    AttemptRecord attempt;
    std::vector<CheckpointWritten> checkpoints;
    SeriesPoints series;
    bool touched = false;
    int64_t first_sequence = 0;  // of the items that its feed gets, once they are written
  };

  void ReadJobs();
  void ReadEndedJob(const std::string& uid);
  absl::Status ReadSeriesOfAll();
  absl::StatusOr<AppendResult> Take(const RankEvents& entry, absl::Time now);
  absl::Status WriteJobs(const Query& query, const std::vector<JobAtWork*>& touched);
  absl::Status WriteRanks(const std::vector<JobAtWork*>& touched);
  // Puts the new feed items of each job into the first answer for that job.
  void GiveItems(std::vector<absl::StatusOr<AppendResult>>& answers);

  Transaction& transaction_;
  const std::vector<RankEvents>& group_;
  std::map<std::string, JobAtWork> jobs_;  // by uid
};

}  // namespace trainyard::postgres
