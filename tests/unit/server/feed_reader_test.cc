// The rings of watched jobs and the reader that fills them, over a store that counts its calls.

#include "server/watch/feed_reader.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

FeedRecord Item(int64_t sequence) {
  return {.sequence = sequence, .what = NoticeRecord{0, false, absl::StrCat("item ", sequence)}};
}

std::vector<FeedRecord> Items(int64_t from, int64_t to) {
  std::vector<FeedRecord> items;
  for (int64_t sequence = from; sequence <= to; ++sequence) items.push_back(Item(sequence));
  return items;
}

FeedRecord Change(int64_t sequence, JobState to) {
  return {.sequence = sequence, .what = StateChangeRecord{.to = to}};
}

SharedItems Shared(std::vector<FeedRecord> items) {
  return std::make_shared<const std::vector<FeedRecord>>(std::move(items));
}

// Feeds in memory. Only what a reader of feeds needs.
class FeedStore : public JobStore {
 public:
  absl::StatusOr<JobRecord> Get(const JobName& name) override {
    if (away) return absl::UnavailableError("away");
    JobRecord job;
    job.uid = job.job_id = name.job_id;
    job.state = ended.count(name.job_id) > 0 ? JobState::kSucceeded : JobState::kRunning;
    return job;
  }
  absl::StatusOr<std::vector<FeedRecord>> ReadFeed(const std::string& uid, int64_t after,
                                                   int limit) override {
    const int64_t to = std::min<int64_t>(newest[uid], after + limit);
    return Items(after + 1, to);
  }
  absl::StatusOr<std::vector<std::vector<FeedRecord>>> ReadFeeds(
      const std::vector<FeedPosition>& positions, int limit) override {
    ++calls;
    if (away) return absl::UnavailableError("away");
    std::vector<std::vector<FeedRecord>> feeds;
    for (const FeedPosition& position : positions) {
      feeds.push_back(*ReadFeed(position.job_uid, position.after, limit));
    }
    if (during) std::exchange(during, nullptr)();
    return feeds;
  }
  absl::StatusOr<std::vector<FeedState>> ReadFeedStates(
      const std::vector<std::string>& uids) override {
    ++calls;
    if (away) return absl::UnavailableError("away");
    std::vector<FeedState> states;
    for (const std::string& uid : uids) {
      const auto found = newest.find(uid);
      states.push_back(
          {found != newest.end(), ended.count(uid) > 0, found == newest.end() ? 0 : found->second});
    }
    return states;
  }

  int calls = 0;
  bool away = false;
  std::function<void()> during;  // the next reading of feeds, before it is answered
  std::map<std::string, int64_t> newest;
  std::set<std::string> ended;

 private:
  static absl::Status No() { return absl::UnimplementedError("not for this test"); }
  absl::StatusOr<JobRecord> Submit(const JobRecord&) override { return No(); }
  std::vector<absl::StatusOr<JobRecord>> SubmitMany(const std::vector<JobRecord>& jobs) override {
    return std::vector<absl::StatusOr<JobRecord>>(jobs.size(), No());
  }
  absl::StatusOr<JobPage> List(const std::string&, const std::vector<JobFilter>&, int,
                               const std::string&) override {
    return No();
  }
  absl::StatusOr<JobRecord> Cancel(const JobName&, int64_t, const Reason&) override { return No(); }
  absl::StatusOr<JobRecord> Pause(const JobName&, int64_t, const Reason&, absl::Duration) override {
    return No();
  }
  absl::StatusOr<JobRecord> Resume(const JobName&, int64_t, const Reason&) override { return No(); }
  absl::StatusOr<JobRecord> SetSlotRange(const JobName&, int64_t, const SlotRange&,
                                         const std::string&) override {
    return No();
  }
  absl::Status Delete(const JobName&, int64_t) override { return No(); }
  absl::StatusOr<std::vector<MetricBucket>> ReadMetricBuckets(const std::string&,
                                                              const MetricBucketQuery&) override {
    return No();
  }
  absl::StatusOr<std::vector<MetricRow>> ReadMetrics(const std::string&,
                                                     const MetricQuery&) override {
    return No();
  }
  absl::StatusOr<std::vector<CheckpointRecord>> ListCheckpoints(const std::string&) override {
    return No();
  }
};

class FeedReaderTest : public ::testing::Test {
 protected:
  // A watcher that takes what it is woken for, unless it is slow.
  struct Watcher {
    std::string uid;
    int64_t cursor = 0;
    bool slow = false;
    int wakes = 0;
    bool ended = false;
    std::shared_ptr<JobFeed> feed;
  };

  void Join(Watcher& watcher) {
    watcher.feed =
        reader_->Join({"default", watcher.uid}, watcher.uid, watcher.cursor, &watcher, [&watcher] {
          ++watcher.wakes;
          if (!watcher.slow) Take(watcher);
        });
  }
  // Everything that is held, without a gap.
  static void Take(Watcher& watcher) {
    FeedPiece piece = watcher.feed->Take(watcher.cursor, 1000);
    ASSERT_TRUE(piece.held);
    for (const FeedRecord& item : piece.items) ASSERT_EQ(item.sequence, ++watcher.cursor);
    watcher.ended = piece.ended != nullptr;
  }
  void RunAll() {
    while (pool_.RunOne()) {
    }
  }
  void Grow(const std::string& uid, int64_t items) {
    store_.newest[uid] += items;
    reader_->Wake(uid);
  }

  // As a server that has just stored the next items itself.
  void Store(const std::string& uid, int64_t items) {
    const int64_t before = store_.newest[uid];
    store_.newest[uid] += items;
    reader_->Offer(uid, Shared(Items(before + 1, before + items)));
  }

  FakeClock clock_;
  TaskPool pool_{0, clock_};
  FeedStore store_;
  std::shared_ptr<FeedReader> reader_ =
      std::make_shared<FeedReader>(pool_, store_, absl::Milliseconds(500));
};

TEST(JobFeed, HoldsWhatSomeWatcherHasNotTaken) {
  JobFeed feed(10);
  feed.Join(10);
  feed.Join(10);
  feed.Append(Items(11, 15));
  EXPECT_EQ(feed.Take(10, 3).items.back().sequence, 13);
  EXPECT_EQ(feed.held(), 5u);  // the other took nothing
  EXPECT_EQ(feed.Take(10, 100).items.size(), 5u);
  EXPECT_EQ(feed.held(), 2u);
  EXPECT_EQ(feed.Take(13, 100).items.size(), 2u);
  EXPECT_EQ(feed.held(), 0u);
  EXPECT_TRUE(feed.Take(15, 100).held);
  EXPECT_TRUE(feed.Take(15, 100).items.empty());
}

TEST(JobFeed, OverflowsTowardsTheStoreAndNotInMemory) {
  JobFeed feed(0);
  feed.Join(0);  // slow
  feed.Join(0);  // quick
  int64_t quick = 0;
  for (int64_t sequence = 1; sequence <= 1000; ++sequence) {
    feed.Append({Item(sequence)});
    quick = feed.Take(quick, 10).items.back().sequence;
    EXPECT_LE(feed.held(), JobFeed::kMostItems);
  }
  EXPECT_EQ(quick, 1000);
  EXPECT_FALSE(feed.Take(0, 10).held);
  feed.Move(0, 990);  // it read the store
  const FeedPiece rest = feed.Take(990, 100);
  EXPECT_TRUE(rest.held);
  EXPECT_EQ(rest.items.front().sequence, 991);
  EXPECT_EQ(rest.items.back().sequence, 1000);
  // A few large items are as much as many small ones.
  FeedRecord large = Item(1001);
  std::get<NoticeRecord>(large.what).message = std::string(JobFeed::kMostBytes / 4, 'x');
  for (int i = 0; i < 10; ++i) {
    large.sequence = 1001 + i;
    feed.Append({large});
  }
  EXPECT_LT(feed.held(), 5u);
}

TEST(JobFeed, EndIsTakenBackByWhatFollows) {
  JobFeed feed(3);
  feed.Join(3);
  EXPECT_TRUE(feed.SetEnded(std::make_shared<const JobRecord>(), 3));
  EXPECT_NE(feed.Take(3, 10).ended, nullptr);
  EXPECT_EQ(feed.Take(4, 10).ended, nullptr) << "the reader has not got so far";
  feed.Append(Items(4, 6));
  EXPECT_EQ(feed.Take(3, 10).ended, nullptr);
  EXPECT_TRUE(feed.SetEnded(std::make_shared<const JobRecord>(), 6));
  feed.Join(6);  // resumed since, perhaps: the reader has to look
  EXPECT_EQ(feed.Take(6, 10).ended, nullptr);
}

TEST(JobFeed, IsNotEndedWhereItGoesOn) {
  JobFeed feed(3);
  feed.Join(3);
  feed.Append(Items(4, 5));  // since the end was looked for
  EXPECT_FALSE(feed.SetEnded(std::make_shared<const JobRecord>(), 3));
  EXPECT_EQ(feed.Take(3, 10).ended, nullptr);
  EXPECT_EQ(feed.Take(5, 10).ended, nullptr);
}

TEST(JobFeed, TakesWhatGoesOnFromItsNewestItemAndNothingTwice) {
  JobFeed feed(3);
  feed.Join(3);
  EXPECT_EQ(feed.Append({}), Appended::kKnown);
  EXPECT_EQ(feed.Append(Items(2, 3)), Appended::kKnown);
  EXPECT_EQ(feed.Append(Items(5, 6)), Appended::kGap);
  EXPECT_EQ(feed.newest(), 3);
  EXPECT_EQ(feed.Append(Items(4, 5)), Appended::kTaken);
  EXPECT_EQ(feed.Append(Items(4, 5)), Appended::kKnown);
  EXPECT_EQ(feed.Append(Items(3, 7)), Appended::kTaken);
  EXPECT_EQ(feed.newest(), 7);
  EXPECT_EQ(feed.held(), 4u);
  int64_t expected = 4;
  for (const FeedRecord& item : feed.Take(3, 10).items) EXPECT_EQ(item.sequence, expected++);
}

TEST_F(FeedReaderTest, ManyWatchersOfAJobCostOneReading) {
  store_.newest["a"] = 5;
  std::vector<Watcher> watchers(100, Watcher{.uid = "a", .cursor = 5});
  for (Watcher& watcher : watchers) Join(watcher);
  RunAll();
  const int before = store_.calls;
  EXPECT_LE(before, 4);
  Grow("a", 3);
  RunAll();
  EXPECT_EQ(store_.calls - before, 1);
  for (const Watcher& watcher : watchers) EXPECT_EQ(watcher.cursor, 8);
}

TEST_F(FeedReaderTest, ManyJobsThatChangeAtOnceAreOneReading) {
  std::vector<Watcher> watchers(200);
  for (size_t i = 0; i < watchers.size(); ++i) {
    watchers[i].uid = absl::StrCat("job", i);
    store_.newest[watchers[i].uid] = 0;
    Join(watchers[i]);
  }
  RunAll();
  const int before = store_.calls;
  for (const Watcher& watcher : watchers) Grow(watcher.uid, 2);
  RunAll();
  EXPECT_EQ(store_.calls - before, 1);
  for (const Watcher& watcher : watchers) EXPECT_EQ(watcher.cursor, 2);
}

TEST_F(FeedReaderTest, IdleWatchersOfManyJobsAreComparedInOneCall) {
  std::vector<Watcher> watchers(2000);
  for (size_t i = 0; i < watchers.size(); ++i) {
    watchers[i].uid = absl::StrCat("job", i);
    store_.newest[watchers[i].uid] = 0;
    Join(watchers[i]);
  }
  RunAll();
  const int before = store_.calls;
  reader_->WakeAll();
  RunAll();
  EXPECT_EQ(store_.calls - before, 1);
  EXPECT_GT(reader_->answered(), absl::InfinitePast());
  // A hint that was lost.
  store_.newest["job77"] = 4;
  reader_->WakeAll();
  RunAll();
  EXPECT_EQ(watchers[77].cursor, 4);
  EXPECT_EQ(watchers[78].wakes, 0);
}

TEST_F(FeedReaderTest, WatcherThatJoinsInTheMiddleOfABurstMissesNothing) {
  store_.newest["a"] = 0;
  Watcher first{.uid = "a"};
  Join(first);
  std::vector<std::unique_ptr<Watcher>> late;
  for (int turn = 1; turn <= 50; ++turn) {
    Grow("a", turn % 7);
    // It read the store up to here, and what comes now it must find in the ring.
    late.push_back(std::make_unique<Watcher>(Watcher{.uid = "a", .cursor = store_.newest["a"]}));
    Join(*late.back());
    Grow("a", 3);
    if (turn % 3 == 0) pool_.RunOne();
  }
  RunAll();
  EXPECT_EQ(first.cursor, store_.newest["a"]);
  for (const auto& watcher : late) EXPECT_EQ(watcher->cursor, store_.newest["a"]);
}

TEST_F(FeedReaderTest, SlowWatcherFallsBehindTheRingAndHoldsNobodyUp) {
  store_.newest["a"] = 0;
  Watcher slow{.uid = "a", .slow = true};
  Watcher quick{.uid = "a"};
  Join(slow);
  Join(quick);
  for (int turn = 0; turn < 10; ++turn) {
    Grow("a", 100);
    RunAll();
  }
  EXPECT_EQ(quick.cursor, 1000);
  EXPECT_FALSE(slow.feed->Take(slow.cursor, 10).held);
  EXPECT_LE(slow.feed->held(), JobFeed::kMostItems);
}

TEST_F(FeedReaderTest, StoreThatIsAwayForTwoMinutesIsTriedNowAndThenAndNothingIsMissed) {
  std::vector<Watcher> watchers(20);
  for (size_t i = 0; i < watchers.size(); ++i) {
    watchers[i].uid = absl::StrCat("job", i);
    store_.newest[watchers[i].uid] = 0;
    Join(watchers[i]);
  }
  RunAll();
  store_.away = true;
  const int before = store_.calls;
  for (int second = 0; second < 120; ++second) {
    if (second % 5 == 0) reader_->WakeAll();  // as the clock does, and hints of other replicas
    for (const Watcher& watcher : watchers) Grow(watcher.uid, 1);
    for (int part = 0; part < 10; ++part) {
      clock_.Advance(absl::Milliseconds(100));
      RunAll();
    }
  }
  EXPECT_LT(store_.calls - before, 300);
  EXPECT_EQ(watchers[0].cursor, 0);
  store_.away = false;
  clock_.Advance(absl::Milliseconds(500));
  RunAll();
  for (const Watcher& watcher : watchers) EXPECT_EQ(watcher.cursor, 120);
}

TEST_F(FeedReaderTest, EndOfAJobIsToldOnceEverythingBeforeItWasTaken) {
  store_.newest["a"] = 0;
  Watcher watcher{.uid = "a"};
  Join(watcher);
  RunAll();
  EXPECT_FALSE(watcher.ended);
  store_.ended.insert("a");
  store_.newest["a"] = 3;
  reader_->WakeAll();
  RunAll();
  EXPECT_EQ(watcher.cursor, 3);
  EXPECT_TRUE(watcher.ended);
  reader_->Leave("a", watcher.cursor, &watcher);
  const int before = store_.calls;
  reader_->Wake("a");
  reader_->WakeAll();
  RunAll();
  EXPECT_EQ(store_.calls, before) << "nobody watches any more";
}

TEST_F(FeedReaderTest, DeletedJobIsGone) {
  store_.newest["a"] = 2;
  Watcher watcher{.uid = "a", .cursor = 2, .slow = true};
  Join(watcher);
  RunAll();
  EXPECT_FALSE(watcher.feed->Take(2, 10).gone);
  store_.newest.erase("a");
  reader_->WakeAll();
  RunAll();
  EXPECT_EQ(watcher.wakes, 1);
  EXPECT_TRUE(watcher.feed->Take(2, 10).gone);
}

TEST_F(FeedReaderTest, WhatIsOfferedIsTakenWithoutAReading) {
  store_.newest["a"] = 5;
  store_.newest["b"] = 0;
  std::vector<Watcher> watchers(10, Watcher{.uid = "a", .cursor = 5});
  for (Watcher& watcher : watchers) Join(watcher);
  RunAll();
  const int before = store_.calls;
  Store("a", 3);
  for (const Watcher& watcher : watchers) EXPECT_EQ(watcher.cursor, 8);
  Store("b", 1);  // nobody watches it
  Store("a", 1);
  reader_->Offer("a", Shared(Items(7, 9)));  // known
  RunAll();
  EXPECT_EQ(store_.calls, before);
  for (const Watcher& watcher : watchers) {
    EXPECT_EQ(watcher.cursor, 9);
    EXPECT_EQ(watcher.wakes, 2);
  }
}

TEST_F(FeedReaderTest, PointsOfARunThatIsOfferedAreItemsOfTheirOwn) {
  Watcher watcher{.uid = "a", .slow = true};
  store_.newest["a"] = 0;
  Join(watcher);
  RunAll();
  MetricRun run{.steps = {1, 2, 3},
                .times = {absl::UnixEpoch(), absl::UnixEpoch(), absl::UnixEpoch()},
                .names = {"loss"},
                .values = {{3.0, 2.0, 1.0}}};
  const auto items = NumberedItems(1, {FeedRecord{.what = NoticeRecord{0, false, "first"}},
                                       {.attempt = 7, .what = run},
                                       {.what = NoticeRecord{0, false, "last"}}});
  reader_->Offer("a", items);
  const FeedPiece piece = watcher.feed->Take(0, 10);
  ASSERT_EQ(piece.items.size(), 5u);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(piece.items[i].sequence, i + 1);
  EXPECT_EQ(std::get<MetricRecord>(piece.items[3].what).step, 3);
  EXPECT_EQ(piece.items[3].attempt, 7);
}

TEST_F(FeedReaderTest, OfferBehindAGapIsRead) {
  store_.newest["a"] = 0;
  Watcher watcher{.uid = "a"};
  Join(watcher);
  RunAll();
  const int before = store_.calls;
  store_.newest["a"] = 2;  // another server stored these
  Store("a", 2);
  EXPECT_EQ(watcher.cursor, 0);
  RunAll();
  EXPECT_EQ(watcher.cursor, 4);
  EXPECT_EQ(store_.calls - before, 1);
  Store("a", 1);
  EXPECT_EQ(watcher.cursor, 5) << "it goes on without a reading";
}

TEST_F(FeedReaderTest, FeedThatWaitsForAReadingTakesOffersAndIsReadNonetheless) {
  store_.newest["a"] = 0;
  Watcher watcher{.uid = "a"};
  Join(watcher);
  Store("a", 2);
  EXPECT_EQ(watcher.cursor, 2);
  store_.newest["a"] += 1;  // nobody offers it
  RunAll();
  EXPECT_EQ(watcher.cursor, 3);
}

TEST_F(FeedReaderTest, OffersDuringAReadingAreNeitherLostNorTakenTwice) {
  store_.newest["a"] = 0;
  Watcher watcher{.uid = "a"};
  Watcher slow{.uid = "a", .slow = true};  // sees at the end all that the ring holds
  Join(watcher);
  Join(slow);
  RunAll();
  Store("a", 2);
  // What the reading has found already, in part.
  Grow("a", 4);
  store_.during = [&] {
    reader_->Offer("a", Shared(Items(3, 4)));
    EXPECT_EQ(watcher.cursor, 4);
  };
  RunAll();
  EXPECT_EQ(watcher.cursor, 6);
  // All of it, and more.
  Grow("a", 1);
  store_.during = [&] {
    reader_->Offer("a", Shared(Items(7, 7)));
    Store("a", 2);
    EXPECT_EQ(watcher.cursor, 9);
  };
  RunAll();
  EXPECT_EQ(watcher.cursor, 9);
  EXPECT_EQ(watcher.feed->newest(), 9);
  // What lies behind it: the reading does not reach that far.
  Grow("a", 1);
  store_.during = [&] {
    Store("a", 1);
    EXPECT_EQ(watcher.cursor, 9);
  };
  RunAll();
  EXPECT_EQ(watcher.cursor, 11);
  EXPECT_EQ(slow.feed->held(), 11u);
  Take(slow);
  EXPECT_EQ(slow.cursor, 11);
}

TEST_F(FeedReaderTest, OfferThatEndsTheJobIsReadWithItsRecord) {
  store_.newest["a"] = 0;
  Watcher watcher{.uid = "a"};
  Join(watcher);
  RunAll();
  store_.newest["a"] = 2;
  store_.ended.insert("a");
  reader_->Offer("a", Shared({Item(1), Change(2, JobState::kSucceeded)}));
  EXPECT_EQ(watcher.cursor, 0);
  RunAll();
  EXPECT_EQ(watcher.cursor, 2);
  EXPECT_TRUE(watcher.ended);
}

TEST_F(FeedReaderTest, FeedThatGoesOnWhileItsEndIsReadHasNotEnded) {
  store_.newest["a"] = 3;
  Watcher watcher{.uid = "a", .cursor = 3};
  Join(watcher);
  RunAll();
  store_.ended.insert("a");
  reader_->WakeAll();
  store_.during = [&] {  // it was resumed, and goes on
    store_.ended.erase("a");
    Store("a", 1);
  };
  RunAll();
  EXPECT_EQ(watcher.cursor, 4);
  EXPECT_FALSE(watcher.ended);
  // The end is looked for once more, so that the next one is not missed.
  store_.ended.insert("a");
  reader_->WakeAll();
  store_.during = [&] { Store("a", 1); };
  RunAll();
  EXPECT_EQ(watcher.cursor, 5);
  EXPECT_TRUE(watcher.ended);
}

TEST_F(FeedReaderTest, FeedThatIsAheadOfTheComparisonIsNotRead) {
  store_.newest["a"] = 0;
  Watcher watcher{.uid = "a"};
  Join(watcher);
  RunAll();
  reader_->Offer("a", Shared(Items(1, 2)));  // stored after what the comparison sees
  const int before = store_.calls;
  reader_->WakeAll();
  RunAll();
  EXPECT_EQ(store_.calls - before, 1);
  EXPECT_EQ(watcher.cursor, 2);
}

}  // namespace
}  // namespace trainyard
