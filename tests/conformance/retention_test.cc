// How ended jobs and gone nodes age, on PostgreSQL: its clock cannot be moved, so what is old is
// made so.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "storage/postgres/postgres.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

class AgingRecords : public ::testing::Test {
 protected:
  void SetUp() override { stores_ = Open(); }

  std::unique_ptr<Stores> Open() {
    auto stores = postgres::Open(SharedPostgres().Conninfo(database_));
    EXPECT_OK(stores.status());
    return *std::move(stores);
  }

  std::string Ask(const std::string& sql) {
    const auto answer = SharedPostgres().Query(database_, sql);
    EXPECT_OK(answer.status());
    return answer.value_or("");
  }

  JobRecord Submit(const std::string& id) {
    JobRecord job;
    job.project = "default";
    job.job_id = job.request_id = id;
    const auto made = stores_->jobs().Submit(job);
    EXPECT_OK(made.status());
    return *made;
  }

  JobRecord SubmitAndCancel(const std::string& id) {
    Submit(id);
    const auto job = stores_->jobs().Cancel({"default", id}, 0, kUser);
    EXPECT_OK(job.status());
    return *job;
  }

  // As if the job had been submitted, and had ended if it has, that long ago.
  void MakeOlder(const std::string& id, int days) {
    const std::string by = absl::StrCat(" - interval '", days, " days'");
    const std::string of = absl::StrCat(" WHERE job_id = '", id, "'");
    Ask(absl::StrCat(
        "UPDATE feed SET month = month_of(create_time", by, ") FROM job_specs s", of,
        " AND s.job_uid = feed.job_uid; UPDATE job_specs SET create_time = create_time", by, of,
        "; UPDATE jobs SET create_time = create_time", by, of,
        "; UPDATE ended_jobs SET create_time = create_time", by, ", end_time = end_time", by, of));
  }

  // Until nothing is due any more.
  Aged AgeAll(Stores& stores) {
    EXPECT_OK(stores.retention().MakeMonthlyPartitions());
    Aged all{.more = true};
    for (int steps = 0; all.more; ++steps) {
      const auto aged = stores.retention().Age();
      if (absl::IsUnavailable(aged.status())) continue;  // somebody held a lock: again
      EXPECT_OK(aged.status());
      EXPECT_LT(steps, 1000);
      if (!aged.ok() || steps >= 1000) return all;
      all.months += aged->months;
      all.jobs += aged->jobs;
      all.nodes += aged->nodes;
      all.more = aged->more;
    }
    return all;
  }

  bool Exists(const std::string& id) { return stores_->jobs().Get({"default", id}).ok(); }

  const std::string database_ = NewDatabase();
  std::unique_ptr<Stores> stores_;
};

TEST_F(AgingRecords, AnEndedJobsRowLiesInTheHistoryUntilItIsResumed) {
  const auto where = [this] {
    return Ask("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM ended_jobs)");
  };
  const JobRecord job = Submit("a");
  EXPECT_EQ(where(), "1|0");
  ASSERT_OK(stores_->jobs().Cancel({"default", "a"}, 0, kUser).status());
  EXPECT_EQ(where(), "0|1");
  EXPECT_EQ(stores_->jobs().Get({"default", "a"})->uid, job.uid);
  EXPECT_EQ(Submit("a").state, JobState::kCancelled) << "the request id's first answer";
  JobRecord other;
  other.project = "default";
  other.job_id = "a";
  EXPECT_TRUE(absl::IsAlreadyExists(stores_->jobs().Submit(other).status()));
  other.job_id = "b";
  other.request_id = "a";
  other.spec = "another";
  EXPECT_TRUE(absl::IsAlreadyExists(stores_->jobs().Submit(other).status()));
  EXPECT_EQ(stores_->jobs().Resume({"default", "a"}, 0, kUser)->state, JobState::kQueued);
  EXPECT_EQ(where(), "1|0");
  EXPECT_EQ(stores_->jobs().ReadFeed(job.uid, 0, 10)->size(), 3u);
}

TEST_F(AgingRecords, AMonthGoesOnceItsLastJobEndedLongAgo) {
  const JobRecord gone = SubmitAndCancel("old");
  Submit("old-live");
  SubmitAndCancel("new");
  MakeOlder("old", 800);
  MakeOlder("old-live", 800);
  EXPECT_EQ(AgeAll(*stores_).jobs, 0) << "a live job is in that month";
  ASSERT_OK(stores_->jobs().Cancel({"default", "old-live"}, 0, kUser).status());
  EXPECT_EQ(AgeAll(*stores_).jobs, 0) << "it ended just now";
  Ask("UPDATE ended_jobs SET end_time = end_time - interval '366 days' WHERE job_id = 'old-live'");
  EXPECT_NE(Ask("SELECT count(*) FROM pg_inherits WHERE inhparent = 'feed'::regclass"), "4");
  const Aged aged = AgeAll(*stores_);
  EXPECT_EQ(aged.jobs, 2);
  EXPECT_EQ(aged.months, 1);
  EXPECT_FALSE(Exists("old"));
  EXPECT_FALSE(Exists("old-live"));
  EXPECT_TRUE(Exists("new"));
  EXPECT_TRUE(absl::IsNotFound(stores_->jobs().ReadFeed(gone.uid, 0, 10).status()));
  EXPECT_TRUE(absl::IsNotFound(stores_->fleet().ListAttempts(gone.uid).status()));
  EXPECT_EQ(Ask("SELECT count(*) FROM pg_inherits WHERE inhparent = 'feed'::regclass"), "4")
      << "this month, the next two, and the default";
  EXPECT_EQ(Ask("SELECT count(*) FROM job_specs"), "1");
  EXPECT_EQ(Submit("old").state, JobState::kQueued) << "the name and request id are free";
}

// Its records go in pieces after the month with its feed: the first item, which has no row, must
// not outlive it.
TEST_F(AgingRecords, AJobWhoseMonthWentHasNoFeedWhileItsRecordsAreRemoved) {
  const JobRecord job = SubmitAndCancel("a");
  MakeOlder("a", 800);
  ASSERT_OK(stores_->retention().MakeMonthlyPartitions());
  ASSERT_OK(stores_->retention().Age().status());
  ASSERT_EQ(Ask("SELECT count(*) FROM job_specs"), "1") << "not yet removed";
  EXPECT_TRUE(absl::IsNotFound(stores_->jobs().ReadFeed(job.uid, 0, 10).status()));
  EXPECT_TRUE(stores_->jobs().ReadFeeds({{job.uid, 0}}, 10)->at(0).empty());
}

TEST_F(AgingRecords, AResumedJobKeepsItsMonth) {
  const JobRecord job = SubmitAndCancel("a");
  MakeOlder("a", 800);
  ASSERT_OK(stores_->jobs().Resume({"default", "a"}, 0, kUser).status());
  EXPECT_EQ(AgeAll(*stores_).jobs, 0);
  EXPECT_EQ(stores_->jobs().Get({"default", "a"})->state, JobState::kQueued);
  EXPECT_EQ(stores_->jobs().ReadFeed(job.uid, 0, 10)->size(), 3u);
}

TEST_F(AgingRecords, RetentionIsKeptAndDecides) {
  EXPECT_EQ(stores_->retention().GetRetention()->ended_jobs, absl::Hours(365 * 24));
  SubmitAndCancel("a");
  MakeOlder("a", 100);
  EXPECT_EQ(AgeAll(*stores_).jobs, 0);
  ASSERT_OK(stores_->retention().SetRetention({.ended_jobs = absl::Hours(60 * 24)}));
  EXPECT_EQ(Open()->retention().GetRetention()->ended_jobs, absl::Hours(60 * 24));
  EXPECT_EQ(AgeAll(*stores_).jobs, 1);
  EXPECT_TRUE(
      absl::IsInvalidArgument(stores_->retention().SetRetention({.ended_jobs = absl::Minutes(1)})));
}

// A database as the migration before left it: live, failed and cancelled jobs with feeds.
TEST(Migrations, JobsThatEndedMoveIntoTheHistoryWithTheirFeeds) {
  ASSERT_OK(SharedPostgres().CreateDatabase("before_history"));
  const auto ask = [](const std::string& sql) {
    const auto answer = SharedPostgres().Query("before_history", sql);
    EXPECT_OK(answer.status());
    return answer.value_or("");
  };
  ASSERT_OK(postgres::Migrate(SharedPostgres().Conninfo("before_history"), 9));
  for (const char* id : {"queued", "failed", "cancelled"}) {
    const bool live = std::string(id) == "queued";
    const std::string state = absl::AsciiStrToUpper(id);
    ask(absl::StrCat(
        "INSERT INTO jobs SELECT '", id, "-uid', 'default', '", id, "', 'me', '", id,
        "', '{\"team\": \"a\"}', 0, 1, 1, '', 0, 0, 0, 0, now() - interval '70 days', '", state,
        "', '', '', 'NONE', 2, 0, 0, 0, now(), NULL, NULL, ", live ? "NULL" : "now()",
        ", NULL, NULL, '', 1; INSERT INTO job_specs VALUES ('", id,
        "-uid', 'spec', 'plan'); INSERT INTO feed VALUES ('", id,
        "-uid', 1, now(), 0, 'STATE', '{\"to\": \"", state,
        "\", \"code\": \"C\", \"message\": \"m\"}')"));
  }
  ASSERT_OK(postgres::Migrate(SharedPostgres().Conninfo("before_history")));
  EXPECT_EQ(ask("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM ended_jobs), (SELECT "
                "count(*) FROM feed), (SELECT count(*) FROM feed_default)"),
            "1|2|3|0");
  auto stores = postgres::Open(SharedPostgres().Conninfo("before_history"));
  ASSERT_OK(stores.status());
  JobStore& jobs = (*stores)->jobs();
  EXPECT_EQ(
      jobs.List("-", {{.field = JobFilter::Field::kLabel, .label = "team", .value = "a"}}, 9, "")
          ->jobs.size(),
      3u);
  EXPECT_EQ(jobs.Get({"default", "failed"})->spec, "spec");
  EXPECT_EQ(jobs.ReadFeed("failed-uid", 0, 9)->size(), 1u);
  EXPECT_EQ(jobs.Resume({"default", "failed"}, 0, kUser)->state, JobState::kQueued);
  EXPECT_EQ(jobs.ReadFeed("failed-uid", 0, 9)->size(), 2u);
  JobRecord again;
  again.project = "default";
  again.job_id = "cancelled";
  EXPECT_TRUE(absl::IsAlreadyExists(jobs.Submit(again).status()));
  stores->reset();
  EXPECT_OK(SharedPostgres().DropDatabase("before_history"));
}

// Rows whose month has no partition yet are found all the same, before and after it is made.
TEST_F(AgingRecords, RowsThatCameBeforeTheirPartitionMoveIntoIt) {
  const JobRecord job = SubmitAndCancel("a");
  MakeOlder("a", 200);
  const auto check = [&] {
    EXPECT_EQ(stores_->jobs().Get({"default", "a"})->uid, job.uid);
    EXPECT_EQ(stores_->jobs().ReadFeed(job.uid, 0, 10)->size(), 2u);
    EXPECT_EQ(stores_->jobs().List("default", {}, 10, "")->jobs.size(), 1u);
  };
  EXPECT_EQ(Ask("SELECT count(*) FROM ended_jobs_default"), "1");
  check();
  ASSERT_OK(stores_->retention().MakeMonthlyPartitions());
  EXPECT_EQ(Ask("SELECT (SELECT count(*) FROM ended_jobs_default), (SELECT count(*) FROM "
                "feed_default)"),
            "0|0");
  check();
}

// Two servers age while others list, resume and read: each job is there with all it has, or gone.
TEST_F(AgingRecords, ServersThatAgeAtOnceAndReadersDoNotHarmEachOther) {
  constexpr int kJobs = 24;
  std::vector<JobRecord> made;
  for (int i = 0; i < kJobs; ++i) {
    made.push_back(SubmitAndCancel(absl::StrCat("j", i)));
    MakeOlder(made.back().job_id, 500 + 40 * (i % 6));
  }
  ASSERT_OK(stores_->retention().MakeMonthlyPartitions());
  std::atomic<bool> stopping = false;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    while (!stopping) {
      const auto page = stores_->jobs().List("-", {}, 1000, "");
      EXPECT_TRUE(page.ok() || absl::IsUnavailable(page.status())) << page.status();
    }
  });
  threads.emplace_back([&] {
    for (int i = 0; i < kJobs; i += 5) {
      const auto resumed =
          stores_->jobs().Resume({"default", absl::StrCat("j", i)}, 0, kUser).status();
      EXPECT_TRUE(resumed.ok() || absl::IsNotFound(resumed) || absl::IsUnavailable(resumed))
          << resumed;
    }
  });
  std::atomic<int> jobs = 0;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const auto stores = Open();
      for (int turn = 0; turn < 5; ++turn) jobs += AgeAll(*stores).jobs;
    });
  }
  for (size_t i = 1; i < threads.size(); ++i) threads[i].join();
  stopping = true;
  threads[0].join();
  jobs += AgeAll(*stores_).jobs;
  int left = 0;
  for (const JobRecord& job : made) {
    const auto found = stores_->jobs().Get({"default", job.job_id});
    const auto feed = stores_->jobs().ReadFeed(job.uid, 0, 10);
    EXPECT_EQ(found.ok(), feed.ok()) << job.job_id;
    if (!found.ok()) continue;
    ++left;
    EXPECT_EQ(feed->size(), found->state == JobState::kQueued ? 3u : 2u);
  }
  EXPECT_EQ(left + jobs, kJobs);
  EXPECT_GT(jobs, 0);
  EXPECT_EQ(Ask("SELECT count(*) FROM job_specs"), absl::StrCat(left));
}

TEST_F(AgingRecords, NodesThatAreGoneForLongAreForgottenUnlessSomethingMayRunThere) {
  for (const char* name : {"gone", "held", "here"}) {
    NodeRecord node;
    node.name = name;
    node.slots = {{.index = 0}};
    ASSERT_OK(stores_->fleet().RegisterNode(node, absl::Seconds(10)).status());
  }
  const int64_t epoch = stores_->scheduler().Lead("test", absl::Seconds(60), std::nullopt)->epoch;
  const JobRecord job = Submit("a");
  const Placement placement{.job_uid = job.uid, .job_version = 1, .ranks = {{"held", {0}}}};
  ASSERT_EQ(*stores_->scheduler().Apply(epoch, {.placements = {placement}}), 1);
  Ask("UPDATE nodes SET reachable = false WHERE name <> 'here'; "
      "UPDATE leases SET lease_end = lease_end - interval '31 days' WHERE node <> 'here'");
  EXPECT_EQ(AgeAll(*stores_).nodes, 1);
  const auto nodes = stores_->fleet().ListNodes();
  ASSERT_OK(nodes.status());
  std::vector<std::string> left;
  for (const NodeRecord& node : *nodes) left.push_back(node.name);
  EXPECT_EQ(left, (std::vector<std::string>{"held", "here"}));
}

TEST_F(AgingRecords, WithANodeItsLostRanksOfDeletedJobsAreForgotten) {
  NodeRecord node;
  node.name = "lost";
  node.slots = {{.index = 0}, {.index = 1}};
  ASSERT_OK(stores_->fleet().RegisterNode(node, absl::Seconds(10)).status());
  const int64_t epoch = stores_->scheduler().Lead("test", absl::Seconds(60), std::nullopt)->epoch;
  for (int i = 0; i < 2; ++i) {
    const JobRecord job = Submit(i == 0 ? "kept" : "deleted");
    const Placement placement{.job_uid = job.uid, .job_version = 1, .ranks = {{"lost", {i}}}};
    ASSERT_EQ(*stores_->scheduler().Apply(epoch, {.placements = {placement}}), 1);
  }
  Ask("UPDATE ranks SET state = 'LOST', lost = true, outcome = 'LOST', gone_time = now(); "
      "DELETE FROM jobs WHERE job_id = 'deleted'; DELETE FROM job_specs WHERE job_id = 'deleted'; "
      "UPDATE nodes SET reachable = false; "
      "UPDATE leases SET lease_end = lease_end - interval '31 days'");
  EXPECT_EQ(AgeAll(*stores_).nodes, 1);
  EXPECT_EQ(Ask("SELECT string_agg(coalesce(j.job_id, '') || ' ' || r.state, ',') FROM ranks r "
                "LEFT JOIN jobs j ON j.uid = r.job_uid"),
            "kept GONE");
}

}  // namespace

TEST_P(StoreSuite, NothingIsOldEnoughToGoAtFirst) {
  Submit("a");
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  RetentionStore& retention = backend_->stores().retention();
  ASSERT_OK(retention.MakeMonthlyPartitions());
  ASSERT_OK(retention.SetRetention({.ended_jobs = absl::Hours(1), .gone_nodes = absl::Hours(2)}));
  EXPECT_EQ(retention.GetRetention()->ended_jobs, absl::Hours(1));
  EXPECT_EQ(retention.GetRetention()->gone_nodes, absl::Hours(2));
  EXPECT_TRUE(absl::IsInvalidArgument(retention.SetRetention({.gone_nodes = absl::Seconds(1)})));
  EXPECT_EQ(retention.Age()->jobs, 0);
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
}

TEST_P(StoreSuite, NodesAgeOnceTheyAreGone) {
  Register("n1");
  Register("n2");
  const int64_t epoch = Lead();
  ASSERT_OK(scheduler().Apply(epoch, {.lost_nodes = {Stands("n1")}}).status());
  RetentionStore& retention = backend_->stores().retention();
  EXPECT_EQ(retention.Age()->nodes, 0);
  backend_->Pass(absl::Hours(31 * 24));
  EXPECT_EQ(retention.Age()->nodes, 1) << "n2 is not lost";
  ASSERT_EQ(fleet().ListNodes()->size(), 1u);
  Register("n1");  // as a new one
}

}  // namespace trainyard::testing
