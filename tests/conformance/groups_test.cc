// Events of many ranks in one commit, and feeds of many jobs in one reading.

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kJobs = 5;

class Groups : public StoreSuite {
 protected:
  void SetUp() override {
    StoreSuite::SetUp();
    Register("n1", 4 * kJobs);
    for (int i = 0; i < kJobs; ++i) {
      const std::string id = absl::StrCat("job", i);
      Submit(id);
      Place(Get(id), {"n1"}, {i});
      JobRecord job = Get(id);
      Append(job, 0, "n1", Writer(job).Restored(0));
      running_.push_back(Get(id));
    }
  }

  // Of rank 0.
  RankEvents Next(const JobRecord& job, EventWriter& writer) {
    return {"n1", {job.uid, job.attempt, 0}, writer.Take()};
  }

  std::vector<JobRecord> running_;
};

TEST_P(Groups, EventsOfManyRanksAreStoredOnceEach) {
  std::vector<RankEvents> group;
  for (const JobRecord& job : running_) {
    group.push_back(Next(job, Writer(job).Train(1).Train(2)));
    group.push_back(Next(job, Writer(job).Train(3).Checkpoint(3)));
  }
  for (int turn = 0; turn < 2; ++turn) {  // as an agent that heard no answer
    const auto answers = fleet().AppendGroup(group);
    ASSERT_EQ(answers.size(), group.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_OK(answers[i].status());
      EXPECT_FALSE(answers[i]->fenced);
      EXPECT_GE(answers[i]->acked_sequence, group[i].events.back().sequence);
      EXPECT_EQ(answers[i]->nodes, std::vector<std::string>{"n1"});
    }
  }
  for (const JobRecord& job : running_) {
    EXPECT_EQ(jobs().ReadMetrics(job.uid, {.include_superseded = true})->size(), 3u);
    EXPECT_EQ(jobs().ListCheckpoints(job.uid)->size(), 1u);
    EXPECT_EQ(Get(job.job_id).step, 3);
    ExpectGaplessFeed(job.uid);
  }
  group.clear();
  for (const JobRecord& job : running_) {
    group.push_back(Next(job, Writer(job).Finished(3).Exited()));
  }
  for (const auto& answer : fleet().AppendGroup(group)) {
    ASSERT_OK(answer.status());
    EXPECT_TRUE(answer->job_changed);
  }
  for (const JobRecord& job : running_) {
    EXPECT_EQ(Get(job.job_id).state, JobState::kSucceeded);
    EXPECT_NE(fleet().ListAttempts(job.uid)->at(0).end_time, absl::InfinitePast());
    ExpectGaplessFeed(job.uid);
  }
  EXPECT_TRUE(fleet().ListRanks("n1")->empty());
  // Their slots are free again.
  Submit("next");
  EXPECT_EQ(Place(Get("next"), {"n1"}, {0}), 1);
}

TEST_P(Groups, FencedAndRefusedEventsDoNotHurtTheirNeighbours) {
  const auto event = [](int64_t sequence) {
    return RankEventRecord{.sequence = sequence,
                           .time = absl::UnixEpoch(),
                           .what = MetricRecord{1, MetricSplit::kTrain, {{"loss", 1.0}}}};
  };
  const JobRecord& a = running_[0];
  const JobRecord& b = running_[1];
  const JobRecord& c = running_[2];
  const std::vector<RankEvents> group = {
      Next(a, Writer(a).Train(1)),        {"n1", {"no such job", 1, 0}, {event(1)}},
      {"n2", {b.uid, 1, 0}, {event(2)}},   // not its node
      {"n1", {b.uid, 7, 0}, {event(2)}},   // not its attempt
      {"n1", {b.uid, 1, 9}, {event(2)}},   // no such rank
      {"n1", {c.uid, 1, 0}, {event(40)}},  // a gap
      Next(b, Writer(b).Train(1)),        Next(c, Writer(c).Train(1)),
  };
  const auto answers = fleet().AppendGroup(group);
  ASSERT_EQ(answers.size(), group.size());
  for (const size_t stored : {0, 6, 7}) {
    ASSERT_OK(answers[stored].status());
    EXPECT_FALSE(answers[stored]->fenced) << stored;
    EXPECT_EQ(answers[stored]->acked_sequence, 2) << stored;
  }
  for (const size_t fenced : {1, 2, 3, 4}) {
    ASSERT_OK(answers[fenced].status());
    EXPECT_TRUE(answers[fenced]->fenced) << fenced;
  }
  EXPECT_EQ(answers[5].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answers[5].status().message()), HasSubstr("found sequence 40"));
  for (const JobRecord& job : {a, b, c}) {
    EXPECT_EQ(jobs().ReadMetrics(job.uid, {})->size(), 1u);
    ExpectGaplessFeed(job.uid);
  }
}

TEST_P(Groups, RanksOfOneJobInOneGroupEndIt) {
  Submit("gang", 2);
  ASSERT_EQ(Place(Get("gang"), {"n1", "n1"}, {kJobs, kJobs + 1}), 1);
  const JobRecord gang = Get("gang");
  std::vector<RankEvents> group;
  for (const int rank : {1, 0}) {
    EventWriter& writer = Writer(gang, rank);
    group.push_back({"n1", {gang.uid, 1, rank}, writer.Restored(0).Take()});
    if (rank == 0) writer.Train(1);
    group.push_back({"n1", {gang.uid, 1, rank}, writer.Finished(1).Exited().Take()});
  }
  for (const auto& answer : fleet().AppendGroup(group)) {
    ASSERT_OK(answer.status());
    EXPECT_FALSE(answer->fenced);
  }
  EXPECT_EQ(Get("gang").state, JobState::kSucceeded);
  EXPECT_EQ(jobs().ReadMetrics(gang.uid, {})->size(), 1u);
  ExpectGaplessFeed(gang.uid);
}

TEST_P(Groups, GroupsOfManyThreadsTakeNothingTwice) {
  std::vector<RankEvents> all;
  for (int step = 1; step <= 20; ++step) {
    for (const JobRecord& job : running_) all.push_back(Next(job, Writer(job).Train(step)));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const size_t size = kJobs * static_cast<size_t>(t + 1);
      for (size_t from = 0; from < all.size(); from += size) {
        const std::vector<RankEvents> group(
            all.begin() + static_cast<int64_t>(from),
            all.begin() + static_cast<int64_t>(std::min(all.size(), from + size)));
        for (const auto& answer : fleet().AppendGroup(group)) EXPECT_OK(answer.status());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const JobRecord& job : running_) {
    EXPECT_EQ(jobs().ReadMetrics(job.uid, {.include_superseded = true})->size(), 20u);
    ExpectGaplessFeed(job.uid);
  }
}

TEST_P(Groups, FeedsOfManyJobsReadAsTheyDoAlone) {
  std::vector<FeedPosition> positions;
  std::vector<std::string> uids;
  for (size_t i = 0; i < running_.size(); ++i) {
    const JobRecord& job = running_[i];
    for (size_t step = 1; step <= i; ++step) Writer(job).Train(static_cast<int64_t>(step));
    if (i > 0) Append(job, 0, "n1", Writer(job));
    positions.push_back({job.uid, static_cast<int64_t>(i)});
    uids.push_back(job.uid);
  }
  positions.insert(positions.begin() + 2, {"no such job", 0});
  uids.insert(uids.begin() + 2, "no such job");
  ASSERT_OK(jobs().Cancel({"default", "job4"}, 0, kUser).status());
  for (const int limit : {2, 100}) {
    const auto feeds = jobs().ReadFeeds(positions, limit);
    ASSERT_OK(feeds.status());
    ASSERT_EQ(feeds->size(), positions.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      const auto alone = jobs().ReadFeed(positions[i].job_uid, positions[i].after, limit);
      if (!alone.ok()) {
        EXPECT_TRUE(feeds->at(i).empty());
        continue;
      }
      ASSERT_EQ(feeds->at(i).size(), alone->size());
      for (size_t item = 0; item < alone->size(); ++item) {
        EXPECT_EQ(feeds->at(i)[item].sequence, alone->at(item).sequence);
        EXPECT_EQ(feeds->at(i)[item].what.index(), alone->at(item).what.index());
        EXPECT_EQ(feeds->at(i)[item].time, alone->at(item).time);
      }
    }
  }
  const auto states = jobs().ReadFeedStates(uids);
  ASSERT_OK(states.status());
  for (size_t i = 0; i < uids.size(); ++i) {
    const auto feed = jobs().ReadFeed(uids[i], 0, 1000);
    EXPECT_EQ(states->at(i).exists, feed.ok());
    EXPECT_FALSE(states->at(i).ended);
    if (!feed.ok()) continue;
    EXPECT_EQ(states->at(i).newest, feed->back().sequence);
  }
  EXPECT_TRUE(jobs().ReadFeeds({}, 10)->empty());
  EXPECT_TRUE(jobs().ReadFeedStates({})->empty());
}

INSTANTIATE_TEST_SUITE_P(Stores, Groups, ::testing::Values("memory", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trainyard::testing
