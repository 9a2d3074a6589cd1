// A feed read in pieces: from any cursor, in pages of any length, whoever wrote its rows.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/postgres/postgres.h"
#include "storage/records/change.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

std::string Words(const StateChangeRecord& change) {
  return absl::StrCat(change.from.has_value() ? JobStateName(*change.from) : "", ">",
                      JobStateName(change.to), " ", change.reason.code, " ", change.reason.message);
}
std::string Words(const MetricRecord& point) {
  return absl::StrCat("step ", point.step, " loss ", point.values.at("loss"));
}
std::string Words(const CheckpointRecord& checkpoint) {
  return absl::StrCat(checkpoint.uri, " ", checkpoint.step, " ", checkpoint.attempt, " ",
                      absl::ToUnixMicros(checkpoint.create_time));
}
std::string Words(const AttemptStartedRecord& started) {
  return absl::StrCat("attempt on ", started.nodes.at(0));
}
std::string Words(const NoticeRecord& notice) { return notice.message; }
std::string Words(const MetricRun&) { return "a run"; }

// A line per item, with all that tells it from others.
std::vector<std::string> Lines(const std::vector<FeedRecord>& items) {
  std::vector<std::string> lines;
  for (const FeedRecord& item : items) {
    lines.push_back(
        absl::StrCat(item.sequence, " ", absl::ToUnixMicros(item.time), " ", item.attempt, " ",
                     std::visit([](const auto& what) { return Words(what); }, item.what)));
  }
  return lines;
}

// Numbers below 16 and around its multiples, and some beyond, up to `most`.
std::vector<int64_t> Sampled(int64_t most) {
  std::vector<int64_t> numbers;
  for (int64_t n = 0; n <= most; n += n < 64 ? 1 : 97) numbers.push_back(n);
  numbers.push_back(most);
  return numbers;
}

void ExpectTheSameInPieces(JobStore& jobs, const std::string& uid) {
  const auto whole = jobs.ReadFeed(uid, 0, 100000);
  ASSERT_OK(whole.status());
  const std::vector<std::string> lines = Lines(*whole);
  const auto size = static_cast<int64_t>(lines.size());
  for (int64_t i = 0; i < size; ++i) ASSERT_EQ((*whole)[i].sequence, i + 1) << lines[i];
  for (const int64_t after : Sampled(size)) {
    for (const int limit : {1, 2, 3, 16, 17, 1500}) {
      const auto piece = jobs.ReadFeed(uid, after, limit);
      ASSERT_OK(piece.status());
      const std::vector<std::string> expected(
          lines.begin() + after, lines.begin() + std::min<int64_t>(size, after + limit));
      ASSERT_EQ(Lines(*piece), expected) << "after " << after << ", at most " << limit;
    }
  }
}

class Feeds : public StoreSuite {
 protected:
  void SetUp() override {
    StoreSuite::SetUp();
    Register("n1", 8);
  }

  static MetricRun Steps(int64_t from, int64_t to) {
    MetricRun run{.names = {"loss"}, .values = {{}}};
    for (int64_t step = from; step <= to; ++step) {
      run.steps.push_back(step);
      run.times.push_back(absl::FromUnixSeconds(step));
      run.values[0].push_back(static_cast<double>(step));
    }
    return run;
  }

  // A watcher's first reading of a job, which asks how far the feed goes, too.
  std::vector<FeedRecord> FirstReading(const std::string& uid) {
    const auto states = jobs().ReadFeedStates({uid});
    const auto items = jobs().ReadFeeds({{uid, 0}}, 256);
    EXPECT_OK(states.status());
    EXPECT_OK(items.status());
    EXPECT_EQ(states->at(0).newest, static_cast<int64_t>(items->at(0).size()));
    return items->at(0);
  }
};

TEST_P(Feeds, ReadTheSameFromAnyCursorInPagesOfAnyLength) {
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  writer.Train(1).Add(NoticeRecord{0, true, "one"}).Train(2).Checkpoint(2);
  writer.Add(NoticeRecord{0, false, "two"}).Train(3).Train(4);
  Append(job, 0, "n1", writer);
  for (int i = 0; i < 40; ++i) writer.Add(NoticeRecord{0, false, absl::StrCat("of many ", i)});
  Append(job, 0, "n1", writer.Train(5).Add(NoticeRecord{0, false, "the last"}));
  Append(job, 0, "n1", writer.Add(Steps(6, 8)));
  Append(job, 0, "n1", writer.Add(NoticeRecord{0, false, "the end"}).Finished(8).Exited());
  ExpectTheSameInPieces(jobs(), job.uid);
  std::string kinds;
  for (const FeedRecord& item : FirstReading(job.uid)) kinds += "SMCAN"[item.what.index()];
  EXPECT_EQ(kinds, absl::StrCat("SSAS", "MNMCNMM", std::string(40, 'N'), "MN", "MMM", "NS"));
}

// So many that they lie in chunks, of which a few are read at a time: pages end where chunks do.
TEST_P(Feeds, ReadTheSameWhereItemsLieBetweenManyPoints) {
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  for (int64_t step = 1; step <= 6000; step += 700) {
    writer.Add(Steps(step, step + 699)).Add(NoticeRecord{0, false, absl::StrCat("after ", step)});
  }
  Append(job, 0, "n1", writer);
  ExpectTheSameInPieces(jobs(), job.uid);
  Append(job, 0, "n1", writer.Add(Steps(6301, 7000)).Finished(7000).Exited());
  ExpectTheSameInPieces(jobs(), job.uid);
}

TEST_P(Feeds, BeginWithTheSubmissionWhateverTheJobWaitsFor) {
  JobRecord other = NewJob("other");
  other.reason = {"WAITING_FOR_SLOTS", "needs 1 CPU slot; too few such slots are free"};
  ASSERT_OK(jobs().Submit(other).status());
  Submit("usual");
  for (const std::string id : {"other", "usual"}) {
    const JobRecord job = Get(id);
    const std::vector<FeedRecord> items = FirstReading(job.uid);
    ASSERT_EQ(items.size(), 1u) << id;
    EXPECT_EQ(items[0].sequence, 1);
    EXPECT_EQ(items[0].time, job.create_time);
    EXPECT_EQ(items[0].attempt, 0);
    const auto& submitted = std::get<StateChangeRecord>(items[0].what);
    EXPECT_EQ(submitted.from, std::nullopt);
    EXPECT_EQ(submitted.to, JobState::kQueued);
    EXPECT_EQ(submitted.reason, SubmittedReason());
    EXPECT_EQ(job.reason, id == "other" ? other.reason : SubmittedReason());
    EXPECT_TRUE(jobs().ReadFeed(job.uid, 1, 10)->empty());
    EXPECT_TRUE(jobs().ReadFeed(job.uid, 0, 0)->empty());

    ASSERT_OK(jobs().Cancel({"default", id}, 0, kUser).status());
    ExpectTheSameInPieces(jobs(), job.uid);
    EXPECT_EQ(FirstReading(job.uid).size(), 2u);
    ASSERT_OK(jobs().Resume({"default", id}, 0, kUser).status());
    ExpectTheSameInPieces(jobs(), job.uid);
    EXPECT_EQ(Lines(FirstReading(job.uid))[0], Lines(items)[0]);

    ASSERT_OK(jobs().Cancel({"default", id}, 0, kUser).status());
    ASSERT_OK(jobs().Delete({"default", id}, 0));
    EXPECT_TRUE(absl::IsNotFound(jobs().ReadFeed(job.uid, 0, 10).status()));
    EXPECT_TRUE(FirstReading(job.uid).empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, Feeds, ::testing::Values("memory", "postgres"),
                         [](const auto& info) { return info.param; });

class FeedRows : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stores = postgres::Open(SharedPostgres().Conninfo(database_));
    ASSERT_OK(stores.status());
    stores_ = *std::move(stores);
    NodeRecord node{.name = "n1"};
    node.slots = {{.index = 0, .device = "CPU"}};
    ASSERT_OK(stores_->fleet().RegisterNode(node, absl::Hours(1)).status());
  }

  static JobRecord Called(const std::string& job_id) {
    JobRecord job;
    job.project = "default";
    job.job_id = job_id;
    return job;
  }

  // Submits, places and runs a job to its end, which its only rank reports with `events` at once.
  std::string LiveAtOnce(const JobRecord& submitted, EventWriter events) {
    const auto job = stores_->jobs().Submit(submitted);
    EXPECT_OK(job.status());
    const auto lease = stores_->scheduler().Lead("leader", absl::Hours(1), std::nullopt);
    EXPECT_OK(lease.status());
    const Placement placement{.job_uid = job->uid, .job_version = 1, .ranks = {{"n1", {0}}}};
    EXPECT_OK(stores_->scheduler().Apply(lease->epoch, {.placements = {placement}}).status());
    EXPECT_OK(stores_->fleet().AppendEvents({"n1", {job->uid, 1, 0}, events.Take()}).status());
    return job->uid;
  }

  std::string Ask(const std::string& sql) {
    const auto answer = SharedPostgres().Query(database_, sql);
    EXPECT_OK(answer.status());
    return answer.value_or("");
  }

  const std::string database_ = NewDatabase();
  std::unique_ptr<Stores> stores_;
};

constexpr char kRows[] =
    "SELECT coalesce(string_agg(sequence || ':' || kind, ' ' ORDER BY sequence), '') FROM feed ";

TEST_F(FeedRows, OfOneTransactionAreOneAndASubmissionAsAllOthersHasNone) {
  const std::string uid =
      LiveAtOnce(Called("a"), EventWriter().Restored(0).Train(1).Finished(1).Exited());
  EXPECT_EQ(Ask(kRows), "3:ITEMS 6:ITEMS");
  ExpectTheSameInPieces(stores_->jobs(), uid);
  EXPECT_EQ(stores_->jobs().ReadFeed(uid, 0, 10)->size(), 6u);
  JobRecord other = Called("b");
  other.reason = {"WAITING_FOR_SLOTS", "needs 1 CPU slot; too few such slots are free"};
  ASSERT_OK(stores_->jobs().Submit(other).status());
  EXPECT_EQ(Ask(absl::StrCat(kRows, "WHERE job_uid <> '", uid, "'")), "");
}

TEST_F(FeedRows, OfServersBeforeReadAsTheirItemsDo) {
  EventWriter events;
  events.Restored(0).Train(1).Checkpoint(1).Add(NoticeRecord{0, true, "a notice"}).Train(2);
  const std::string uid = LiveAtOnce(Called("a"), events.Finished(2).Exited());
  const auto packed = stores_->jobs().ReadFeed(uid, 0, 100);
  ASSERT_OK(packed.status());
  // As they were written before: a row for each item, and one for the submission.
  Ask("INSERT INTO feed SELECT job_uid, (i->>'sequence')::bigint + 1000, month, "
      "from_micros((i->>'time')::bigint), (i->>'attempt')::bigint, i->>'kind', i->'body' "
      "FROM feed, jsonb_array_elements(body) AS i WHERE kind = 'ITEMS';"
      "DELETE FROM feed WHERE kind = 'ITEMS';"
      "UPDATE feed SET sequence = sequence - 1000 WHERE sequence > 1000");
  Ask(
      absl::StrCat("INSERT INTO feed SELECT job_uid, 1, month_of(create_time), create_time, 0, "
                   "'STATE', jsonb_build_object('to', 'QUEUED', 'code', 'SUBMITTED', 'message', '",
                   SubmittedReason().message, "') FROM job_specs"));
  EXPECT_EQ(Ask(kRows), "1:STATE 2:STATE 3:ATTEMPT 4:STATE 6:CHECKPOINT 7:NOTICE 9:STATE");
  EXPECT_EQ(Lines(*stores_->jobs().ReadFeed(uid, 0, 100)), Lines(*packed));
  ExpectTheSameInPieces(stores_->jobs(), uid);
}

TEST_F(FeedRows, AreAnArrayIfAndOnlyIfTheyArePacked) {
  LiveAtOnce(Called("a"), EventWriter().Restored(0));
  for (const char* wrong : {"kind = 'NOTICE' WHERE kind = 'ITEMS'", "body = '{}' WHERE true"}) {
    EXPECT_FALSE(SharedPostgres().Query(database_, absl::StrCat("UPDATE feed SET ", wrong)).ok())
        << wrong;
  }
}

}  // namespace
}  // namespace trainyard::testing
