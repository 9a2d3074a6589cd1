#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/watch/job_feed.h"
#include "server/work/actor.h"
#include "storage/base/retry_pause.h"
#include "storage/job_store.h"

namespace trainyard {

// Fills the feeds of all watched jobs, each once, however many watch it. What this server has
// stored itself is offered, and taken as it is if it directly follows what the feed has. All else
// is read from the store: one call reads what changed during the reading before it, and nobody
// waits for a group to fill.
//
// Thread-safe. While the store is away it tries again by itself, and nobody is woken for what has
// to be read.
class FeedReader : public Actor {
 public:
  // `jobs` must outlive it.
  FeedReader(TaskPool& pool, JobStore& jobs, absl::Duration longest_retry);

  // The feed of a job for a watcher that has read up to `cursor`; `wake` is called, on any thread
  // and without a lock, whenever there may be more in it. The feed is read at once, so that nothing
  // is missed.
  std::shared_ptr<JobFeed> Join(const JobName& name, const std::string& uid, int64_t cursor,
                                const void* watcher, std::function<void()> wake);
  // `cursor` is where the watcher stands by now.
  void Leave(const std::string& uid, int64_t cursor, const void* watcher);

  // `items` were just stored in the job's feed; they are in order and without a gap among
  // themselves, runs of metrics as runs. Adds them to the feed and wakes the job's watchers, on
  // this thread. If they do not follow what the feed has, or if they end the job, the feed is read
  // from the store instead: its end is sent with the job's record.
  void Offer(const std::string& uid, const SharedItems& items);

  void Wake(const std::string& uid);  // its feed goes on, perhaps
  void WakeAll();                     // hints were lost, or may have been: all are compared

  // When the store answered last about all feeds, or infinitely long ago.
  absl::Time answered() const;

 private:
  struct Watched {
    JobName name;
    std::shared_ptr<JobFeed> feed;  // shared with its watchers
    std::unordered_map<const void*, std::function<void()>> watchers;
    bool waits = false;      // to be read
    bool check_end = false;  // and its job's record, too
  };
  // One feed that is being read.
  struct Reading {
    std::string uid;
    JobName name;
    std::shared_ptr<JobFeed> feed;
    bool check_end = false;
    bool gone = false;
    std::shared_ptr<const JobRecord> ended;
  };

  void Work() override;
  absl::Status CompareAll();
  std::vector<Reading> TakeWaiting();
  absl::Status Read(std::vector<Reading>& feeds);
  absl::Status LookForEnds(std::vector<Reading>& feeds);
  void Mark(const std::string& uid, bool check_end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeWatchers(const std::vector<std::string>& uids);

  JobStore& jobs_;
  RetryPause retry_;  // of Work alone

  mutable absl::Mutex mu_;
  std::unordered_map<std::string, Watched> feeds_ ABSL_GUARDED_BY(mu_);  // by uid
  std::vector<std::string> waiting_ ABSL_GUARDED_BY(mu_);                // in order, each once
  bool compare_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time answered_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace trainyard
