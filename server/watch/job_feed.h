#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/records/feed.h"

namespace trainyard {

// What a watcher finds behind its cursor.
struct FeedPiece {
  bool held = false;  // false: the cursor lies before the ring, and the store has to be read
  std::vector<FeedRecord> items;
  bool gone = false;                       // the job was deleted
  std::shared_ptr<const JobRecord> ended;  // the job ended, and `items` reach to its end
};

// What became of items that somebody had for a feed.
enum class Appended {
  kTaken,  // those that it did not have yet
  kKnown,  // none: it had all of them
  kGap,    // none: there are others before them that it does not have
};

// The newest items of one job's feed, got once for all who watch it: a ring that holds what some
// watcher has not taken yet, but never more than `kMostItems` and about `kMostBytes`. A watcher
// that falls behind the ring reads the store for itself until it is back.
//
// Thread-safe. A reader of the store and those who have just stored items append them at the same
// time; watchers say where their cursors are.
class JobFeed {
 public:
  static constexpr size_t kMostItems = 256;
  static constexpr size_t kMostBytes = 64 << 10;

  // The feed begins behind `newest`: those who join have read everything up to there.
  explicit JobFeed(int64_t newest) : newest_(newest) {}

  // A watcher whose cursor is `cursor` comes, moves on by itself, or leaves.
  void Join(int64_t cursor);
  void Move(int64_t from, int64_t to);
  void Leave(int64_t cursor);

  // What follows `cursor`, at most `limit` items; the watcher's cursor is then that of the last
  // one.
  FeedPiece Take(int64_t cursor, int limit);

  int64_t newest() const;
  // `items` are in order and without a gap, and those that are here already are the same ones.
  Appended Append(std::vector<FeedRecord> items);
  // Sets the record of the job's end. `newest`: how far the feed reached when it was read after the
  // record. Returns false and sets nothing if the feed has gone on since, because the job was
  // resumed. Items that are appended later take the end back.
  bool SetEnded(std::shared_ptr<const JobRecord> ended, int64_t newest);
  void SetGone();

  size_t held() const;  // items

 private:
  void Trim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  int64_t newest_ ABSL_GUARDED_BY(mu_);
  std::deque<FeedRecord> ring_ ABSL_GUARDED_BY(mu_);     // up to newest_, without gaps
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;                // of the ring, roughly
  std::map<int64_t, int> cursors_ ABSL_GUARDED_BY(mu_);  // how many watchers stand where
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const JobRecord> ended_ ABSL_GUARDED_BY(mu_);  // shared by all watchers' ends
};

// Whether the item is the job's way into a state in which nothing happens by itself.
bool EndsJob(const FeedRecord& item);

}  // namespace trainyard
