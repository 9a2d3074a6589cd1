#pragma once

// What happened to a job, in order: the source of every watch.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "storage/base/arithmetic.h"
#include "storage/records/job.h"

namespace trainyard {

enum class MetricSplit { kTrain, kValidation };

struct MetricRecord {
  int64_t step = 0;  // optimizer steps done, from 1
  MetricSplit split = MetricSplit::kTrain;
  std::map<std::string, double> values;  // NaN and infinities included
};

// Metric points with consecutive sequences, stored in columns: all of one split, and all with the
// same names.
struct MetricRun {
  MetricSplit split = MetricSplit::kTrain;
  std::vector<int64_t> steps;               // from 1
  std::vector<absl::Time> times;            // one per step
  std::vector<std::string> names;           // sorted, each once
  std::vector<std::vector<double>> values;  // by name, then by step
};

// The points `from` to `from` + `count` - 1 of a run.
MetricRun SliceRun(const MetricRun& run, size_t from, size_t count);
// One point of a run.
MetricRecord PointOf(const MetricRun& run, size_t at);

struct CheckpointRecord {
  std::string job_uid;
  int64_t step = 0;
  int64_t attempt = 0;
  std::string uri;
  int64_t bytes = 0;
  std::string manifest_sha256;
  std::string weights_sha256;
  bool final = false;
  absl::Time create_time;
  std::map<std::string, double> metrics;  // of the held-out split, if evaluated; finite
};

struct StateChangeRecord {
  std::optional<JobState> from;  // none: the job was submitted
  JobState to = JobState::kQueued;
  Reason reason;
};

struct AttemptStartedRecord {
  int64_t step = 0;                // metrics of earlier attempts past this step are superseded
  std::vector<std::string> nodes;  // by rank
};

struct NoticeRecord {
  int rank = 0;
  bool warning = false;
  std::string message;
};

struct FeedRecord {
  int64_t sequence = 0;  // from 1, without gaps within a job
  absl::Time time;
  int64_t attempt = 0;
  // A run stands for as many items as it has points; its time is not used. Readers of a feed get
  // its points one by one.
  std::variant<StateChangeRecord, MetricRecord, CheckpointRecord, AttemptStartedRecord,
               NoticeRecord, MetricRun>
      what;
};

// Feed items in memory; whoever passes them on and whoever uses them share them.
using SharedItems = std::shared_ptr<const std::vector<FeedRecord>>;

// How many sequence numbers an item takes: one, or as many as a run has points.
int64_t SpanOf(const FeedRecord& item);
// The items with their sequences, from `first_sequence` on; null if there are none.
SharedItems NumberedItems(int64_t first_sequence, std::vector<FeedRecord> items);
// The same items as readers of the feed get them: the points of a run one by one.
std::vector<FeedRecord> SingleItems(const std::vector<FeedRecord>& items);

// One point of a job's series.
struct MetricRow {
  int64_t sequence = 0;
  int64_t attempt = 0;
  absl::Time time;
  MetricRecord point;
  bool superseded = false;
};

// One event of a rank, decoded. `sequence` counts from 1 without gaps within (attempt, rank).
struct RankStarted {
  int64_t pid = 0;
  std::string device;
};
struct RankRestored {
  int64_t step = 0;
  Arithmetic arithmetic;  // what it computes with; empty: not told
};
struct RankFinished {
  bool suspended = false;  // else succeeded
  int64_t step = 0;
  std::string reason;  // why it succeeded before the last step
  bool kept = false;   // suspended, and its node's memory has the state of `step`
};
struct RankExited {
  int exit_code = 0;
  int signal = 0;
  bool lost = false;
  std::string evidence;
  std::optional<bool> killed;  // by its agent; absent: not known
};
struct CheckpointWritten {
  CheckpointRecord checkpoint;
  std::vector<std::string> removed_uris;
};
struct RankEventRecord {
  int64_t sequence = 0;
  absl::Time time;
  // A run stands for as many events as it has points; `sequence` is that of the first, `time` is
  // not used.
  std::variant<RankStarted, RankRestored, MetricRecord, CheckpointWritten, NoticeRecord,
               FailureRecord, RankFinished, RankExited, MetricRun>
      what;
};

// The sequence of the last event that `event` stands for.
int64_t LastSequenceOf(const RankEventRecord& event);

}  // namespace trainyard
