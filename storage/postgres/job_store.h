#pragma once

#include <functional>
#include <string>
#include <vector>

#include "storage/job_store.h"
#include "storage/postgres/database.h"
#include "storage/postgres/submitter.h"
#include "storage/records/change.h"

namespace trainyard::postgres {

class PostgresJobStore : public JobStore {
 public:
  explicit PostgresJobStore(Database& database) : database_(database) {}

  absl::StatusOr<JobRecord> Submit(const JobRecord& job) override;
  std::vector<absl::StatusOr<JobRecord>> SubmitMany(const std::vector<JobRecord>& jobs) override;
  absl::StatusOr<JobRecord> Get(const JobName& name) override;
  absl::StatusOr<JobPage> List(const std::string& project, const std::vector<JobFilter>& filter,
                               int page_size, const std::string& cursor) override;
  absl::StatusOr<JobRecord> Cancel(const JobName& name, int64_t version,
                                   const Reason& reason) override;
  absl::StatusOr<JobRecord> Pause(const JobName& name, int64_t version, const Reason& reason,
                                  absl::Duration grace) override;
  absl::StatusOr<JobRecord> Resume(const JobName& name, int64_t version,
                                   const Reason& reason) override;
  absl::StatusOr<JobRecord> SetSlotRange(const JobName& name, int64_t version,
                                         const SlotRange& range, const std::string& by) override;
  absl::Status Delete(const JobName& name, int64_t version) override;
  absl::StatusOr<std::vector<FeedRecord>> ReadFeed(const std::string& job_uid, int64_t after,
                                                   int limit) override;
  absl::StatusOr<std::vector<std::vector<FeedRecord>>> ReadFeeds(
      const std::vector<FeedPosition>& positions, int limit) override;
  absl::StatusOr<std::vector<FeedState>> ReadFeedStates(
      const std::vector<std::string>& job_uids) override;
  absl::StatusOr<std::vector<MetricRow>> ReadMetrics(const std::string& job_uid,
                                                     const MetricQuery& query) override;
  absl::StatusOr<std::vector<MetricBucket>> ReadMetricBuckets(
      const std::string& job_uid, const MetricBucketQuery& query) override;
  absl::StatusOr<std::vector<CheckpointRecord>> ListCheckpoints(
      const std::string& job_uid) override;

 private:
  using Arrow = std::function<absl::StatusOr<JobChange>(Transaction& transaction,
                                                        const JobRecord& job, absl::Time now)>;
  absl::StatusOr<JobRecord> Move(const char* what, const JobName& name, const Arrow& arrow);

  Database& database_;
  Submitter submitter_{database_};
};

}  // namespace trainyard::postgres
