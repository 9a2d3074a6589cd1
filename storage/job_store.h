#pragma once

// What users do with jobs: one method for each transition that a user can ask for. Implementations
// (storage/postgres, storage/memory) pass one conformance suite, tests/conformance.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/records/feed.h"
#include "storage/records/job.h"
#include "storage/records/job_filter.h"
#include "storage/records/metric_rollup.h"

namespace trainyard {

struct JobName {
  std::string project;
  std::string job_id;
};

// "projects/{project}/jobs/{job}"
inline std::string FormatJobName(const JobName& name) {
  return absl::StrCat("projects/", name.project, "/jobs/", name.job_id);
}

struct JobPage {
  std::vector<JobRecord> jobs;  // newest first, by (create_time, uid)
  std::string next_cursor;      // empty on the last page; opaque
};

// A position in a job's feed: the caller knows all items up to sequence `after`.
struct FeedPosition {
  std::string job_uid;
  int64_t after = 0;
};

// How far a feed goes.
struct FeedState {
  bool exists = false;  // false: the job was deleted
  bool ended = false;   // the state of the job is terminal (IsTerminal)
  int64_t newest = 0;   // sequence of the newest item
};

// Thread-safe. Every method is one transaction. kUnavailable: the database is away, or the answer
// to a commit was lost; calling again is safe for every method here.
class JobStore {
 public:
  virtual ~JobStore() = default;

  // Adds `job` (QUEUED) with its first feed item, or returns the earlier one when `job.request_id`
  // is not empty and was seen in this project with the same `spec`, priority, labels and job id.
  // kAlreadyExists: the request id was used for a different job, or the job id is taken. Sets
  // times, version and state; a `job.uid` that the caller made is kept. If the job id is empty, one
  // is made, and a replay with an empty job id matches whichever was made.
  virtual absl::StatusOr<JobRecord> Submit(const JobRecord& job) = 0;

  // kResourceExhausted: the project has as many jobs that have not ended as it may (TooManyJobs);
  // a limit counts within a second of being set.
  // Does Submit for each of `jobs`, with as few commits as the store can. Each is answered as if it
  // had been submitted alone after those before it, and one that is refused does not make another
  // fail. A replay of all of them is answered with the same jobs. A job that is returned is
  // durable; those with an error may be submitted again. Jobs that come first in `jobs` are older.
  virtual std::vector<absl::StatusOr<JobRecord>> SubmitMany(const std::vector<JobRecord>& jobs) = 0;

  // kNotFound names the job.
  virtual absl::StatusOr<JobRecord> Get(const JobName& name) = 0;

  // `project` "-" means all. `cursor` from an earlier page or empty.
  virtual absl::StatusOr<JobPage> List(const std::string& project,
                                       const std::vector<JobFilter>& filter, int page_size,
                                       const std::string& cursor) = 0;

  // The transitions that users ask for. `version` 0 means any; a version other than the current one
  // is kAborted. Idempotent: if the job is already in the state that was asked for, or on its way
  // there (cancelled, suspended, queued), the record is returned unchanged, whatever the version.
  // kFailedPrecondition names the state that forbids the transition.
  virtual absl::StatusOr<JobRecord> Cancel(const JobName& name, int64_t version,
                                           const Reason& reason) = 0;
  virtual absl::StatusOr<JobRecord> Pause(const JobName& name, int64_t version,
                                          const Reason& reason, absl::Duration grace) = 0;
  virtual absl::StatusOr<JobRecord> Resume(const JobName& name, int64_t version,
                                           const Reason& reason) = 0;

  // From now on the job runs on any number of slots in `range`, and in its layout; what these may
  // be, the caller knows. Unchanged, whatever the version, if it does so already.
  // One that ended gets it once it is resumed; kFailedPrecondition: it never can be. `by`: who
  // asks, for the feed.
  virtual absl::StatusOr<JobRecord> SetSlotRange(const JobName& name, int64_t version,
                                                 const SlotRange& range, const std::string& by) = 0;

  // Only ended jobs (else kFailedPrecondition). Feed, metrics and checkpoint records go too.
  virtual absl::Status Delete(const JobName& name, int64_t version) = 0;

  // Feed items with sequence > `after`, in order, at most `limit`. Reads by uid are kNotFound once
  // the job was deleted.
  virtual absl::StatusOr<std::vector<FeedRecord>> ReadFeed(const std::string& job_uid,
                                                           int64_t after, int limit) = 0;

  // ReadFeed for many jobs at once, in the order of `positions`, at most `limit` items of each. A
  // deleted job has an empty answer.
  virtual absl::StatusOr<std::vector<std::vector<FeedRecord>>> ReadFeeds(
      const std::vector<FeedPosition>& positions, int limit) = 0;

  // How far the feeds of these jobs go, in their order.
  virtual absl::StatusOr<std::vector<FeedState>> ReadFeedStates(
      const std::vector<std::string>& job_uids) = 0;

  struct MetricQuery {
    bool train = true;
    bool validation = true;
    int64_t from_step = 0;
    int64_t to_step = INT64_MAX;
    bool include_superseded = false;
    int limit = 1000;
    // Exclusive lower bound of (step, split, attempt), for paging; step -1: from the beginning.
    int64_t after_step = -1;
    MetricSplit after_split = MetricSplit::kTrain;
    int64_t after_attempt = 0;
  };
  // Ordered by (step, split, attempt). A point is superseded when a later attempt started from a
  // step below the point's step.
  virtual absl::StatusOr<std::vector<MetricRow>> ReadMetrics(const std::string& job_uid,
                                                             const MetricQuery& query) = 0;

  // The current series folded by whole buckets of steps, ordered by (split, name, first_step);
  // empty buckets are left out. The cost grows with the number of buckets, not with that of the
  // points.
  virtual absl::StatusOr<std::vector<MetricBucket>> ReadMetricBuckets(
      const std::string& job_uid, const MetricBucketQuery& query) = 0;

  // Newest first; only those that still exist.
  virtual absl::StatusOr<std::vector<CheckpointRecord>> ListCheckpoints(
      const std::string& job_uid) = 0;
};

}  // namespace trainyard
