// Events of many ranks in one commit, and feeds of many jobs in one reading.

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kJobs = 5;

// All of an item, so that two are the same if their texts are. A double is its bits.
std::string TextOf(const std::map<std::string, double>& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    absl::StrAppend(&text, " ", name, "=", absl::Hex(std::bit_cast<uint64_t>(value)));
  }
  return text;
}

struct ItemText {
  std::string operator()(const StateChangeRecord& change) const {
    return absl::StrCat("state ", change.from.has_value() ? JobStateName(*change.from) : "none",
                        " to ", JobStateName(change.to), " ", change.reason.code, " ",
                        change.reason.message);
  }
  std::string operator()(const MetricRecord& metric) const {
    return absl::StrCat("metric ", metric.step, " of ", static_cast<int>(metric.split),
                        TextOf(metric.values));
  }
  std::string operator()(const CheckpointRecord& checkpoint) const {
    return absl::StrCat("checkpoint ", checkpoint.job_uid, " ", checkpoint.step, " ",
                        checkpoint.attempt, " ", checkpoint.uri, " ", checkpoint.bytes, " ",
                        checkpoint.manifest_sha256, " ", checkpoint.weights_sha256, " ",
                        checkpoint.final, " ", absl::ToUnixNanos(checkpoint.create_time),
                        TextOf(checkpoint.metrics));
  }
  std::string operator()(const AttemptStartedRecord& started) const {
    return absl::StrCat("attempt from ", started.step, " on ", absl::StrJoin(started.nodes, ","));
  }
  std::string operator()(const NoticeRecord& notice) const {
    return absl::StrCat("notice of ", notice.rank, " ", notice.warning, " ", notice.message);
  }
  std::string operator()(const MetricRun&) const { return "a run"; }
};

std::vector<std::string> TextsOf(const std::vector<FeedRecord>& items) {
  std::vector<std::string> texts;
  for (const FeedRecord& item : items) {
    texts.push_back(absl::StrCat(item.sequence, " at ", absl::ToUnixNanos(item.time), " of ",
                                 item.attempt, ": ", std::visit(ItemText(), item.what)));
  }
  return texts;
}

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

  // The answers, which between them must hold all that the group added to feeds, as it is read
  // there.
  std::vector<absl::StatusOr<AppendResult>> AppendTelling(const std::vector<RankEvents>& group) {
    std::map<std::string, int64_t> before;
    for (const RankEvents& entry : group) {
      const std::string& uid = entry.rank.job_uid;
      before[uid] = jobs().ReadFeedStates({uid})->at(0).newest;
    }
    auto answers = fleet().AppendGroup(group);
    std::map<std::string, std::vector<FeedRecord>> told;
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!answers[i].ok() || answers[i]->items == nullptr) continue;
      EXPECT_FALSE(answers[i]->items->empty());
      EXPECT_TRUE(answers[i]->items_known) << i;
      for (FeedRecord& item : SingleItems(*answers[i]->items)) {
        told[group[i].rank.job_uid].push_back(std::move(item));
      }
    }
    for (const auto& [uid, newest] : before) {
      EXPECT_EQ(TextsOf(told[uid]), TextsOf(jobs().ReadFeeds({{uid, newest}}, 1000)->at(0)));
    }
    return answers;
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
  EXPECT_TRUE(ListRanks(fleet(), "n1")->empty());
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

// Points with values that are hard to keep, at times between two microseconds.
MetricRun HardRun(int64_t first_step) {
  MetricRun run{.names = {"a", "loss"}};
  run.values.resize(2);
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -0.0,
        1.0 / 3, std::numeric_limits<double>::denorm_min()}) {
    run.times.push_back(absl::FromUnixNanos(1'700'000'000'123'456'789 + 1001 * run.steps.size()));
    run.steps.push_back(first_step + static_cast<int64_t>(run.steps.size()));
    run.values[0].push_back(value);
    run.values[1].push_back(-value);
  }
  return run;
}

TEST_P(Groups, AnswersHoldWhatTheGroupAddedToFeeds) {
  Register("n2");
  Register("n3");
  Submit("pair", 2);
  ASSERT_EQ(Place(Get("pair"), {"n2", "n3"}), 1);
  const JobRecord pair = Get("pair");
  const auto of_pair = [&](int rank) {
    return RankEvents{rank == 0 ? "n2" : "n3", {pair.uid, 1, rank}, Writer(pair, rank).Take()};
  };
  CheckpointWritten written;
  written.checkpoint = {.step = 5,
                        .uri = "file:///with \"quotes\" and \\",
                        .bytes = int64_t{1} << 40,
                        .manifest_sha256 = "m",
                        .weights_sha256 = "w",
                        .final = true,
                        .metrics = {{"accuracy", 0.1}, {"tiny", 1e-300}}};
  const MetricRecord validation{
      3, MetricSplit::kValidation, {{"loss", std::nan("")}, {"loss_2", 0.1}}};
  const JobRecord &metrics = running_[0], &notice = running_[1], &ends = running_[2],
                  &fails = running_[3], &silent = running_[4];
  std::vector<RankEvents> group;
  Writer(pair, 0).Add(RankStarted{1, "cpu"}).Restored(0).Add(HardRun(1));
  group.push_back(of_pair(0));
  Writer(pair, 1).Restored(0).Add(NoticeRecord{0, true, "a \"warning\"\n\u00e9"});
  group.push_back(of_pair(1));  // now it runs
  group.push_back(Next(metrics, Writer(metrics).Add(HardRun(1)).Train(6).Add(validation)));
  group.push_back(Next(notice, Writer(notice).Add(NoticeRecord{0, false, "hello"})));
  group.push_back(Next(ends, Writer(ends).Train(1).Finished(1).Exited()));
  group.push_back(Next(fails, Writer(fails).Train(1).Fails(true).Exited(71)));
  group.push_back(Next(silent, Writer(silent).Add(RankStarted{1, "cpu"})));
  // Three points are in the series already.
  group.push_back(Next(metrics, Writer(metrics).Add(HardRun(4)).Add(written)));
  Writer(pair, 0).Add(written).Train(6).Add(NoticeRecord{0, false, "later"});
  group.push_back(of_pair(0));
  group.push_back({"n2", {notice.uid, 1, 0}, Writer(notice).Train(1).Take()});  // not its node
  const size_t fenced = group.size() - 1;
  auto answers = AppendTelling(group);
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_OK(answers[i].status());
    EXPECT_EQ(answers[i]->fenced, i == fenced) << i;
    EXPECT_EQ(answers[i]->items_known, i != fenced) << i;
  }
  EXPECT_EQ(Get("pair").state, JobState::kRunning);
  EXPECT_EQ(Get(ends.job_id).state, JobState::kSucceeded);
  EXPECT_EQ(Get(fails.job_id).state, JobState::kQueued);
  EXPECT_EQ(answers[6]->items, nullptr) << "nothing is told of a start";
  // Once more, with something new for one job: what was stored before is not known to be told.
  std::vector<RankEvents> again = {group[2], group[0],
                                   Next(metrics, Writer(metrics).Train(9).Train(10))};
  answers = AppendTelling(again);
  for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i]->items_known, i == 2) << i;
  ASSERT_NE(answers[2]->items, nullptr);
  EXPECT_EQ(answers[2]->items->size(), 2u);
}

TEST_P(Groups, AnswersToOneHoldWhatItAddedToTheFeed) {
  const JobRecord& job = running_[0];
  EXPECT_TRUE(AppendTelling({Next(job, Writer(job).Add(HardRun(1)))})[0]->items_known);
  const RankEvents end = Next(job, Writer(job).Checkpoint(5).Finished(5).Exited());
  const auto ended = AppendTelling({end});
  ASSERT_NE(ended[0]->items, nullptr);
  EXPECT_EQ(ended[0]->items->size(), 2u);
  EXPECT_FALSE(AppendTelling({end})[0]->items_known);
  Submit("new");
  ASSERT_EQ(Place(Get("new"), {"n1"}, {0}), 1);
  const JobRecord starts = Get("new");
  const RankEvents start = Next(starts, Writer(starts).Restored(0));
  const auto started = AppendTelling({start});
  ASSERT_NE(started[0]->items, nullptr);
  EXPECT_EQ(started[0]->items->size(), 1u);
  const auto again = AppendTelling({start});
  EXPECT_FALSE(again[0]->fenced);
  EXPECT_FALSE(again[0]->items_known);
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
