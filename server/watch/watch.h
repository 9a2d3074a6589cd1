#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/watch/feed_reader.h"
#include "server/work/actor.h"
#include "storage/base/retry_pause.h"
#include "storage/job_store.h"

namespace trainyard {

// What a watcher is told next. Sequences grow without gaps from one batch to the next.
struct WatchBatch {
  std::string job_name;  // projects/{project}/jobs/{job}
  std::vector<FeedRecord> items;
  int64_t sequence = 0;    // all items up to here are in this batch or an earlier one
  bool heartbeat = false;  // nothing new for a while; `items` is empty
  // The last batch: the job ended and everything was sent. Shared by all who watch the job.
  std::shared_ptr<const JobRecord> ended;
};

// The client's end of a watch. Called one call at a time, from pool threads, and never after
// Finish.
class WatchSink {
 public:
  virtual ~WatchSink() = default;

  // Begins to send; returns false when there is nothing to send in it. Otherwise exactly one
  // Watch::Sent() follows.
  virtual bool Send(WatchBatch batch) = 0;

  // Gives up on the pending Send; Watch::Cancel() follows.
  virtual void Abort() = 0;

  // Ends the stream. The sink may be gone as soon as this was called.
  virtual void Finish(const absl::Status& status) = 0;
};

struct WatchOptions {
  absl::Duration heartbeat = absl::Seconds(5);
  absl::Duration longest_write =
      absl::Seconds(30);  // a client that takes nothing for so long is dropped
  absl::Duration longest_retry = absl::Milliseconds(500);  // while the store is away
  int batch = 256;
};

// One watcher of one job: pulls what lies past its cursor, one batch at a time, and pulls the next
// only when the client took the last. It reads the store until it has caught up, and then the
// job's ring, which it shares with all who watch the job; a slow client falls behind the ring,
// reads for itself again, and delays nobody.
class Watch : public Actor {
 public:
  // Checks the caller's credentials and finds the job; may block.
  using Open = std::function<absl::StatusOr<JobRecord>()>;

  // `sink` must live until Finish was called on it.
  Watch(TaskPool& pool, JobStore& jobs, std::shared_ptr<FeedReader> reader,
        const WatchOptions& options, Open open, int64_t after, WatchSink& sink,
        std::function<void(Watch&)> finished);

  // Thread-safe, never block.
  void Wake();                               // the job changed, perhaps
  void Sent();                               // the client took the batch
  void Cancel();                             // the client is gone
  void EndWith(const absl::Status& status);  // the server drains
  // Heartbeats and time limits. `answered`: when the store was last asked about all feeds.
  void LookAtClock(absl::Time now, absl::Time answered);

 private:
  void Work() override;
  bool OpenOnce();
  void Pull(bool heartbeat);
  absl::Status CheckCursor();
  // Sets `again` if there may be more to read.
  absl::StatusOr<FeedPiece> ReadOn(bool& again);
  std::string name() const { return FormatJobName(job_); }
  void Finish(const absl::Status& status);

  JobStore& jobs_;
  const WatchOptions options_;
  const Open open_;
  WatchSink& sink_;
  const std::shared_ptr<FeedReader>
      reader_;  // of the hub, and of every watch that it may still wake
  const std::function<void(Watch&)> finished_;

  // Used by Work alone.
  bool open_done_ = false;
  bool finish_done_ = false;
  JobName job_;
  std::string uid_;
  // Shared with the reader and all watches of the job; null: catches up.
  std::shared_ptr<JobFeed> feed_;
  int64_t cursor_;
  bool cursor_checked_ = false;  // the feed goes at least as far
  bool last_sent_ = false;       // the batch with the end is on its way
  RetryPause retry_;

  absl::Mutex mu_;
  bool dirty_ ABSL_GUARDED_BY(mu_) = true;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;  // caught up: its feed is compared with the store's
  bool heartbeat_ ABSL_GUARDED_BY(mu_) = false;
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool abort_ ABSL_GUARDED_BY(mu_) = false;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  absl::Time last_activity_ ABSL_GUARDED_BY(mu_);  // a batch went out, or was begun
};

}  // namespace trainyard
