#include "storage/postgres/job_store.h"

#include <algorithm>
#include <optional>
#include <pqxx/pqxx>

#include "storage/base/status.h"
#include "storage/postgres/list_jobs.h"
#include "storage/postgres/metric_reads.h"
#include "storage/postgres/metric_rows.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"
#include "storage/postgres/writes.h"

namespace trainyard::postgres {
namespace {

constexpr int kDeletePiece = 100000;
constexpr int kDeleteChunksPiece = 500;

absl::Status NoSuchJob(const JobName& name) {
  return absl::NotFoundError(absl::StrCat(FormatJobName(name), " does not exist"));
}

absl::Status CheckName(const JobName& name) {
  if (name.project.find('\0') == std::string::npos && name.job_id.find('\0') == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("name: holds a NUL byte");
}

// The job with this name and its spec, locked until the end of the transaction.
std::optional<JobRecord> LockNamed(Transaction& transaction, const JobName& name) {
  const pqxx::result specs = transaction.Run(kFindSpec, Params(name.project, name.job_id));
  if (specs.empty()) return std::nullopt;
  std::optional<JobRecord> job = LockJob(transaction, specs[0]["job_uid"].as<std::string>());
  if (!job.has_value()) return std::nullopt;
  job->spec = BytesOf(specs[0]["spec"]);
  job->plan_summary = BytesOf(specs[0]["plan_summary"]);
  return job;
}

}  // namespace

absl::StatusOr<JobRecord> PostgresJobStore::Submit(const JobRecord& job) {
  return std::move(submitter_.Submit({&job, 1}).front());
}

std::vector<absl::StatusOr<JobRecord>> PostgresJobStore::SubmitMany(
    const std::vector<JobRecord>& jobs) {
  return submitter_.Submit(jobs);
}

absl::StatusOr<JobRecord> PostgresJobStore::Get(const JobName& name) {
  TY_RETURN_IF_ERROR(CheckName(name));
  return database_.Run("get job", [&](Transaction& transaction) -> absl::StatusOr<JobRecord> {
    const pqxx::result rows = transaction.Run(kGetJob, Params(name.project, name.job_id));
    if (rows.empty()) return NoSuchJob(name);
    return JobOf(rows[0]);
  });
}

absl::StatusOr<JobPage> PostgresJobStore::List(const std::string& project,
                                               const std::vector<JobFilter>& filter, int page_size,
                                               const std::string& cursor) {
  if (page_size < 1) return absl::InvalidArgumentError("page size: expected at least 1");
  TY_RETURN_IF_ERROR(CheckFilter(filter));
  TY_ASSIGN_OR_RETURN(const JobCursor after, ParseCursor(cursor));
  return database_.Run("list jobs", [&](Transaction& transaction) -> absl::StatusOr<JobPage> {
    JobPage page;
    std::vector<std::string> months;
    for (const pqxx::row& row : transaction.Run(kEndedMonths, Params())) {
      months.push_back(row[0].as<std::string>());
    }
    const std::string sql = ListSql(transaction, project, filter, after, months);
    const auto limit = static_cast<int64_t>(page_size) + 1;
    for (const pqxx::row& row : transaction.RunText(sql, Params(limit))) {
      page.jobs.push_back(JobOf(row));
    }
    if (page.jobs.size() > static_cast<size_t>(page_size)) {
      page.jobs.pop_back();
      page.next_cursor = FormatCursor(page.jobs.back());
    }
    return page;
  });
}

absl::StatusOr<JobRecord> PostgresJobStore::Move(const char* what, const JobName& name,
                                                 const Arrow& arrow) {
  TY_RETURN_IF_ERROR(CheckName(name));
  return database_.Run(what, [&](Transaction& transaction) -> absl::StatusOr<JobRecord> {
    const std::optional<JobRecord> locked = LockNamed(transaction, name);
    if (!locked.has_value()) return NoSuchJob(name);
    const JobRecord& job = *locked;
    TY_ASSIGN_OR_RETURN(const JobChange change, arrow(transaction, job, Now(transaction)));
    if (change.changed) TY_RETURN_IF_ERROR(WriteJob(transaction, job, change).status());
    return change.job;
  });
}

absl::StatusOr<JobRecord> PostgresJobStore::Cancel(const JobName& name, int64_t version,
                                                   const Reason& reason) {
  return Move("cancel", name, [&](Transaction& transaction, const JobRecord& job, absl::Time now) {
    const bool lost = !transaction.Run(kAnyLostRank, Params(job.uid)).empty();
    return CancelJob(job, lost, version, reason, now);
  });
}

absl::StatusOr<JobRecord> PostgresJobStore::Pause(const JobName& name, int64_t version,
                                                  const Reason& reason, absl::Duration grace) {
  return Move("pause", name, [&](Transaction&, const JobRecord& job, absl::Time now) {
    return PauseJob(job, version, reason, grace, now);
  });
}

absl::StatusOr<JobRecord> PostgresJobStore::Resume(const JobName& name, int64_t version,
                                                   const Reason& reason) {
  return Move("resume", name, [&](Transaction&, const JobRecord& job, absl::Time now) {
    return ResumeJob(job, version, reason, now);
  });
}

absl::StatusOr<JobRecord> PostgresJobStore::SetSlotRange(const JobName& name, int64_t version,
                                                         const SlotRange& range,
                                                         const std::string& by) {
  return Move("resize", name, [&](Transaction&, const JobRecord& job, absl::Time now) {
    return trainyard::SetSlotRange(job, version, range, by, now);
  });
}

absl::Status PostgresJobStore::Delete(const JobName& name, int64_t version) {
  TY_RETURN_IF_ERROR(CheckName(name));
  // The metrics of a long job are deleted in pieces, and the job with the last: a single statement
  // that exceeded its time limit would exceed it again at the next try. An ended job gets no new
  // metrics meanwhile.
  // The version is that before the first piece: whoever changes the job between two, changes one of
  // which a part is gone.
  int64_t wanted = version;
  const auto delete_piece = [&](Transaction& transaction) -> absl::StatusOr<bool> {
    const std::optional<JobRecord> job = LockNamed(transaction, name);
    if (!job.has_value()) {
      if (transaction.repeated_in_doubt) return true;
      return NoSuchJob(name);
    }
    TY_RETURN_IF_ERROR(CheckDeletable(*job, wanted));
    const pqxx::result deleted = transaction.Run(kDeleteMetrics, Params(job->uid, kDeletePiece));
    if (deleted.affected_rows() == kDeletePiece) return false;
    const pqxx::result chunks =
        transaction.Run(kDeleteChunks, Params(job->uid, kDeleteChunksPiece));
    if (chunks.affected_rows() > 0) return false;
    transaction.Run(kDeleteHeads, Params(job->uid));
    transaction.Run(kDeleteJob, Params(job->uid));
    return true;
  };
  bool done = false;
  while (!done) {
    TY_ASSIGN_OR_RETURN(done, database_.Run("delete job", delete_piece));
    wanted = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FeedRecord>> PostgresJobStore::ReadFeed(const std::string& job_uid,
                                                                   int64_t after, int limit) {
  using Items = std::vector<FeedRecord>;
  return database_.Run("read feed", [&](Transaction& transaction) -> absl::StatusOr<Items> {
    TY_ASSIGN_OR_RETURN(
        std::vector<Items> feeds,
        ReadFeedItems(transaction, {{.job_uid = job_uid, .after = after}}, std::max(limit, 0)));
    Items& items = feeds[0];
    if (items.empty()) TY_RETURN_IF_ERROR(RequireJob(transaction, job_uid));
    return items;
  });
}

absl::StatusOr<std::vector<std::vector<FeedRecord>>> PostgresJobStore::ReadFeeds(
    const std::vector<FeedPosition>& positions, int limit) {
  return database_.Run(
      "read feeds",
      [&](Transaction& transaction) {
        return ReadFeedItems(transaction, positions, std::max(limit, 0));
      },
      Access::kStatements);
}

absl::StatusOr<std::vector<FeedState>> PostgresJobStore::ReadFeedStates(
    const std::vector<std::string>& job_uids) {
  using States = std::vector<FeedState>;
  return database_.Run(
      "read states of feeds",
      [&](Transaction& transaction) -> absl::StatusOr<States> {
        States states(job_uids.size());
        for (const pqxx::row& row : transaction.Run(kReadFeedStates, Params(job_uids))) {
          const std::optional<JobState> state = ParseJobState(row[1].as<std::string>());
          states[row[0].as<size_t>() - 1] = {.exists = true,
                                             .ended = state.has_value() && IsTerminal(*state),
                                             .newest = row[2].as<int64_t>()};
        }
        return states;
      },
      Access::kStatements);
}

absl::StatusOr<std::vector<MetricRow>> PostgresJobStore::ReadMetrics(const std::string& job_uid,
                                                                     const MetricQuery& query) {
  using Rows = std::vector<MetricRow>;
  const auto read = [&](Transaction& transaction) -> absl::StatusOr<Rows> {
    TY_ASSIGN_OR_RETURN(Rows rows, ReadPoints(transaction, job_uid, query));
    if (rows.empty()) TY_RETURN_IF_ERROR(RequireJob(transaction, job_uid));
    return rows;
  };
  return database_.Run("read metrics", read, Access::kSnapshot);
}

absl::StatusOr<std::vector<MetricBucket>> PostgresJobStore::ReadMetricBuckets(
    const std::string& job_uid, const MetricBucketQuery& query) {
  using Buckets = std::vector<MetricBucket>;
  const auto read = [&](Transaction& transaction) -> absl::StatusOr<Buckets> {
    TY_ASSIGN_OR_RETURN(Buckets buckets, ReadBuckets(transaction, job_uid, query));
    if (buckets.empty()) TY_RETURN_IF_ERROR(RequireJob(transaction, job_uid));
    return buckets;
  };
  return database_.Run("read metric buckets", read, Access::kSnapshot);
}

absl::StatusOr<std::vector<CheckpointRecord>> PostgresJobStore::ListCheckpoints(
    const std::string& job_uid) {
  using Checkpoints = std::vector<CheckpointRecord>;
  return database_.Run(
      "list checkpoints", [&](Transaction& transaction) -> absl::StatusOr<Checkpoints> {
        Checkpoints checkpoints;
        for (const pqxx::row& row :
             transaction.Run(kListCheckpoints, Params(job_uid, int64_t{1} << 40))) {
          checkpoints.push_back(CheckpointOf(row));
        }
        if (checkpoints.empty()) TY_RETURN_IF_ERROR(RequireJob(transaction, job_uid));
        return checkpoints;
      });
}

}  // namespace trainyard::postgres
