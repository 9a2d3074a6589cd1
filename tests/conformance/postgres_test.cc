// What only PostgreSQL has: connections that break, a server that crashes.

#include "storage/postgres/postgres.h"
#include "storage/call_limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "storage/call_limit.h"
#include "tests/conformance/losing_proxy.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

constexpr absl::Duration kBound = absl::Seconds(60);

// Calls until it is not unavailable; the bound is a failure.
template <typename Call>
auto Insist(const Call& call) {
  const absl::Time bound = absl::Now() + kBound;
  auto result = call();
  while (result.status().code() == absl::StatusCode::kUnavailable && absl::Now() < bound) {
    absl::SleepFor(absl::Milliseconds(5));
    result = call();
  }
  return result;
}

std::string MakeTemporaryFolder() {
  std::string folder = "/tmp/trainyard-proxy-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

// A store reads of a long queue what changed only; one that was just opened reads all of it.
TEST(Snapshots, AreThoseOfAStoreThatReadsEverythingAnew) {
  const std::string database = NewDatabase();
  const std::string conninfo = SharedPostgres().Conninfo(database);
  const auto stores = OpenOrDie(conninfo);
  const auto seen = [](const SchedulerSnapshot& snapshot) {
    std::set<std::string> jobs;
    for (const JobRecord* job : JobsOf(snapshot)) {
      jobs.insert(absl::StrCat(job->uid, " ", job->job_id, " ", job->version, " ",
                               JobStateName(job->state), " ", job->reason.code, " ",
                               job->reason.message));
    }
    return jobs;
  };
  ASSERT_OK(stores->scheduler().Lead("test", absl::Seconds(60), std::nullopt).status());
  const int64_t epoch = stores->scheduler().Lead("test", absl::Seconds(60), std::nullopt)->epoch;
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 5; ++i) {
      ASSERT_OK(stores->jobs().Submit(Named(absl::StrCat("j", round, "-", i))).status());
    }
    const auto snapshot = stores->scheduler().ReadSnapshot();
    ASSERT_OK(snapshot.status());
    EXPECT_EQ(seen(*snapshot), seen(*OpenOrDie(conninfo)->scheduler().ReadSnapshot()));
    Decisions decisions;  // new texts for some
    const std::vector<const JobRecord*> known = JobsOf(*snapshot);
    for (size_t i = 0; i < known.size(); i += 2) {
      const JobRecord& job = *known[i];
      decisions.reasons.push_back({job.uid,
                                   job.version,
                                   {round % 2 == 0 ? "WAITING_FOR_SLOTS" : "BEHIND_OTHERS",
                                    absl::StrCat("round ", round)}});
    }
    ASSERT_OK(stores->scheduler().Apply(epoch, decisions).status());
    const JobName first{"default", absl::StrCat("j", round, "-0")};
    ASSERT_OK(stores->jobs().Pause(first, 0, kUser, absl::Seconds(1)).status());
    if (round % 2 == 1) {
      ASSERT_OK(stores->jobs().Resume(first, 0, kUser).status());
    }
    ASSERT_OK(
        stores->jobs().Cancel({"default", absl::StrCat("j", round, "-1")}, 0, kUser).status());
    EXPECT_EQ(seen(*stores->scheduler().ReadSnapshot()),
              seen(*OpenOrDie(conninfo)->scheduler().ReadSnapshot()));
  }
}

TEST(Snapshots, AJobThatWasDeletedIsForgotten) {
  const std::string database = NewDatabase();
  const auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  const int64_t epoch = stores->scheduler().Lead("test", absl::Seconds(60), std::nullopt)->epoch;
  NodeRecord node;
  node.name = "n";
  node.slots = {{.index = 0}};
  ASSERT_OK(stores->fleet().RegisterNode(node, absl::Seconds(60)).status());
  const auto job = stores->jobs().Submit(Named("gone"));
  ASSERT_OK(job.status());
  ASSERT_EQ(JobsOf(*stores->scheduler().ReadSnapshot()).size(), 1u);
  ASSERT_OK(stores->jobs().Cancel({"default", "gone"}, 0, kUser).status());
  ASSERT_OK(stores->jobs().Delete({"default", "gone"}, 0));
  const Placement placement{.job_uid = job->uid, .job_version = 1, .ranks = {{"n", {0}}}};
  EXPECT_EQ(*stores->scheduler().Apply(epoch, {.placements = {placement}}), 0);
  EXPECT_TRUE(JobsOf(*stores->scheduler().ReadSnapshot()).empty());
}

TEST(Connections, DatabaseThatIsAwayIsUnavailableAndTheRestIsFine) {
  EXPECT_EQ(postgres::Open("no conninfo at all").status().code(),
            absl::StatusCode::kInvalidArgument);
  auto stores = OpenOrDie("host=/nowhere user=trainyard dbname=none");
  EXPECT_EQ(stores->Probe().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stores->jobs().Submit(Named("a")).status().code(), absl::StatusCode::kUnavailable);
  std::atomic<int> woken = 0;
  stores->wakeups().Subscribe([&](const std::string&) { ++woken; });
  stores->wakeups().Wake("queue");
  EXPECT_EQ(woken, 1);
}

TEST(Connections, UriAndWordsAreBothUnderstood) {
  const std::string database = NewDatabase();
  const std::string words = SharedPostgres().Conninfo(database);
  const std::string host = words.substr(5, words.find(' ') - 5);
  EXPECT_OK(
      OpenOrDie(absl::StrCat("postgresql:///", database, "?user=trainyard&host=", host))->Probe());
  EXPECT_OK(OpenOrDie(words)->Probe());
  EXPECT_OK(SharedPostgres().DropDatabase(database));
}

// Submits jobs from several threads, each until it is acknowledged, while `disturb` runs on this
// one.
template <typename Disturb>
void SubmitWhile(Stores& stores, int jobs_per_thread, const Disturb& disturb) {
  std::atomic<int> running = 3;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&stores, &running, t, jobs_per_thread] {
      for (int i = 0; i < jobs_per_thread; ++i) {
        const JobRecord job = Named(absl::StrCat("job-", t, "-", i));
        EXPECT_OK(Insist([&] { return stores.jobs().Submit(job); }).status());
      }
      --running;
    });
  }
  while (running > 0) disturb();
  for (std::thread& thread : threads) thread.join();
}

void ExpectJobsOnce(Stores& stores, size_t count) {
  const auto page = Insist([&] { return stores.jobs().List("-", {}, 10000, ""); });
  ASSERT_OK(page.status());
  EXPECT_EQ(page->jobs.size(), count);
  for (const JobRecord& job : page->jobs) {
    const auto feed = stores.jobs().ReadFeed(job.uid, 0, 10);
    ASSERT_OK(feed.status());
    EXPECT_EQ(feed->size(), 1u);
  }
}

// Those that come while others are committed go into one commit, and each gets its own answer.
TEST(Submissions, OfManyAtOnceEachIsAnsweredForItself) {
  const std::string database = NewDatabase();
  const auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  constexpr int kThreads = 16, kEach = 40;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const std::string id = absl::StrCat("j", t, "-", i);
        const auto made = stores->jobs().Submit(Named(id));
        EXPECT_TRUE(made.ok() && made->job_id == id) << made.status();
        EXPECT_EQ(stores->jobs().Submit(Named(id))->uid, made->uid);  // the same request again
        JobRecord other =
            Named("shared");  // all threads want this name, with requests of their own
        other.request_id = id + "-shared";
        const absl::Status taken = stores->jobs().Submit(other).status();
        EXPECT_TRUE(taken.ok() || absl::IsAlreadyExists(taken)) << taken;
        JobRecord bad = Named(absl::StrCat("bad", t, "-", i));
        bad.creator = std::string("a\0b", 3);
        EXPECT_TRUE(absl::IsInvalidArgument(stores->jobs().Submit(bad).status()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectJobsOnce(*stores, kThreads * kEach + 1);
}

TEST(Submissions, OnesThatTheDatabaseRefusesFailNoOtherOfTheirBatch) {
  const std::string database = NewDatabase();
  const auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  QueryOrDie(database, "ALTER TABLE jobs ADD CONSTRAINT lucky CHECK (priority <> 13)");
  std::vector<JobRecord> jobs;
  for (int i = 0; i < 100; ++i) {
    jobs.push_back(Named(absl::StrCat("j", i)));
    if (i % 33 == 32) jobs.back().priority = 13;
  }
  const auto answers = stores->jobs().SubmitMany(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(answers[i].ok(), jobs[i].priority != 13) << i << " " << answers[i].status();
  }
  ExpectJobsOnce(*stores, 97);
}

TEST(Connections, TerminatedBackendsLoseAndDoubleNothing) {
  const std::string database = NewDatabase();
  auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  int kills = 0;
  SubmitWhile(*stores, 60, [&] {
    QueryOrDie(database,
               "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
               "WHERE application_name = 'trainyard'");
    ++kills;
  });
  EXPECT_GT(kills, 0);
  ExpectJobsOnce(*stores, 180);
}

TEST(Connections, CrashesOfTheServerLoseNothingThatWasAcknowledged) {
  auto server = PostgresFixture::Start();
  ASSERT_OK(server.status());
  ASSERT_OK(postgres::Migrate((*server)->Conninfo()));
  auto stores = OpenOrDie((*server)->Conninfo());
  int crashes = 0;
  SubmitWhile(*stores, 100, [&] {
    if (crashes == 3) return absl::SleepFor(absl::Milliseconds(5));
    EXPECT_OK((*server)->StopImmediately());
    EXPECT_OK((*server)->StartAgain());
    ++crashes;
  });
  EXPECT_GT(crashes, 0);
  ExpectJobsOnce(*stores, 300);
}

TEST(Connections, ConstantTerminationsNeitherLoseNorDoubleEvents) {
  const std::string database = NewDatabase();
  auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  NodeRecord node;
  node.name = "n1";
  node.slots = {{.index = 0}};
  ASSERT_OK(stores->fleet().RegisterNode(node, absl::Hours(1)).status());
  const auto job = stores->jobs().Submit(Named("a"));
  ASSERT_OK(job.status());
  const auto lease = stores->scheduler().Lead("me", absl::Hours(1), std::nullopt);
  const Placement placement{.job_uid = job->uid, .job_version = 1, .ranks = {{"n1", {0}}}};
  ASSERT_EQ(*stores->scheduler().Apply(lease->epoch, {.placements = {placement}}), 1);

  constexpr int kSteps = 60;
  std::atomic<bool> done = false;
  std::thread sender([&] {
    EventWriter writer;
    writer.Restored(0);
    for (int step = 1; step <= kSteps; ++step) {
      const std::vector<RankEventRecord> events = writer.Train(step).Take();
      EXPECT_OK(Insist([&] {
                  return stores->fleet().AppendEvents({"n1", {job->uid, 1, 0}, events});
                }).status());
    }
    done = true;
  });
  while (!done) {
    QueryOrDie(database,
               "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
               "WHERE application_name = 'trainyard'");
  }
  sender.join();
  const auto rows = Insist([&] { return stores->jobs().ReadMetrics(job->uid, {}); });
  ASSERT_OK(rows.status());
  ASSERT_EQ(rows->size(), size_t{kSteps});
  for (int i = 0; i < kSteps; ++i) EXPECT_EQ((*rows)[i].point.step, i + 1);
  const auto feed = stores->jobs().ReadFeed(job->uid, 0, 1000);
  for (size_t i = 0; i < feed->size(); ++i) EXPECT_EQ((*feed)[i].sequence, int64_t(i) + 1);
}

TEST(Connections, LeasesDoNotWaitBehindWhatUsersAsk) {
  const std::string database = NewDatabase();
  auto stores = postgres::Open(SharedPostgres().Conninfo(database), {.max_connections = 1});
  ASSERT_OK(stores.status());
  NodeRecord node;
  node.name = "n1";
  node.incarnation = "i1";
  ASSERT_OK((*stores)->fleet().RegisterNode(node, absl::Hours(1)).status());
  ASSERT_OK((*stores)->jobs().Submit(Named("a")).status());
  const auto eventually = [&](const std::string& sql) {
    const absl::Time bound = absl::Now() + kBound;
    while (QueryOrDie(database, sql) != "1" && absl::Now() < bound) {
    }
    return QueryOrDie(database, sql) == "1";
  };
  // Somebody holds the job; a user's call waits for it on the one connection.
  std::thread holder([&] {
    SharedPostgres()
        .Query(database, "BEGIN; SELECT FROM jobs FOR UPDATE; SELECT pg_sleep(60)")
        .IgnoreError();
  });
  EXPECT_TRUE(
      eventually("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                 "AND query LIKE '%pg_sleep(60)' AND wait_event = 'PgSleep'"));
  std::thread user([&] {
    EXPECT_OK((*stores)->jobs().Cancel({"default", "a"}, 0, {"TEST", "a test"}).status());
  });
  EXPECT_TRUE(
      eventually("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                 "AND application_name = 'trainyard' AND wait_event_type = 'Lock'"));
  EXPECT_OK(RenewLease((*stores)->fleet(), "n1", "i1", absl::Hours(1), {}));
  QueryOrDie(database,
             "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
             "WHERE wait_event = 'PgSleep'");
  holder.join();
  user.join();
}

TEST(Connections, ALeaseThatSomebodyHoldsKeepsNoOtherWaiting) {
  const std::string database = NewDatabase();
  auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  for (const char* name : {"n1", "n2"}) {
    const NodeRecord node{.name = name, .incarnation = "i1"};
    ASSERT_OK(stores->fleet().RegisterNode(node, absl::Hours(1)).status());
  }
  std::thread holder([&] {  // as a server does that stops in the middle of a registration
    SharedPostgres()
        .Query(database,
               "BEGIN; SELECT FROM leases WHERE node = 'n1' FOR UPDATE; SELECT pg_sleep(60)")
        .IgnoreError();
  });
  const absl::Time bound = absl::Now() + absl::Seconds(30);
  while (absl::Now() < bound &&
         QueryOrDie(database,
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND query LIKE '%pg_sleep(60)' AND wait_event = 'PgSleep'") != "1") {
  }
  const std::vector<absl::Status> answers = stores->fleet().RenewLeases(
      {{"n1", "i1", absl::Hours(1), {}}, {"n2", "i1", absl::Hours(1), {}}});
  EXPECT_TRUE(absl::IsUnavailable(answers[0])) << answers[0];
  EXPECT_OK(answers[1]);
  QueryOrDie(database,
             "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
             "WHERE wait_event = 'PgSleep'");
  holder.join();
  EXPECT_OK(RenewLease(stores->fleet(), "n1", "i1", absl::Hours(1), {}));
}

TEST(Connections, LeasesDoNotWaitBehindWhatRanksReport) {
  const std::string database = NewDatabase();
  auto opened = postgres::Open(SharedPostgres().Conninfo(database), {.max_agent_connections = 1});
  ASSERT_OK(opened.status());
  Stores& stores = **opened;
  const NodeRecord node{.name = "n1", .incarnation = "i1"};
  ASSERT_OK(stores.fleet().RegisterNode(node, absl::Hours(1)).status());
  std::thread holder([&] {
    SharedPostgres().Query(database, "BEGIN; LOCK TABLE jobs; SELECT pg_sleep(60)").IgnoreError();
  });
  const auto eventually = [&](const std::string& sql) {
    const absl::Time bound = absl::Now() + absl::Seconds(30);
    while (QueryOrDie(database, sql) != "1" && absl::Now() < bound) {
    }
    return QueryOrDie(database, sql) == "1";
  };
  EXPECT_TRUE(
      eventually("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                 "AND query LIKE '%pg_sleep(60)' AND wait_event = 'PgSleep'"));
  std::thread agent([&] { stores.fleet().ReadDesired("n1").IgnoreError(); });
  EXPECT_TRUE(
      eventually("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                 "AND application_name = 'trainyard' AND wait_event_type = 'Lock'"));
  const CallLimit limit(absl::Seconds(5));
  EXPECT_OK(RenewLease(stores.fleet(), "n1", "i1", absl::Hours(1), {}));
  QueryOrDie(database,
             "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
             "WHERE wait_event = 'PgSleep'");
  holder.join();
  agent.join();
}

TEST(Connections, LeaderAndAgentsLockJobsInOneOrder) {
  const std::string database = NewDatabase();
  auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  std::vector<RankId> ranks;
  Decisions backwards;
  for (const char* uid : {"1", "2", "3"}) {
    JobRecord job = Named(absl::StrCat("job-", uid));
    job.uid = uid;
    ASSERT_OK(stores->jobs().Submit(job).status());
    ranks.push_back({uid, 1, 0});
    backwards.suspensions.insert(backwards.suspensions.begin(), {.job_uid = uid});
  }
  const auto lease = stores->scheduler().Lead("me", absl::Hours(1), std::nullopt);
  ASSERT_OK(lease.status());
  // Neither changes anything, both lock all three.
  std::thread agent([&] {
    for (int i = 0; i < 300; ++i) EXPECT_OK(stores->fleet().ReportAbsent("n1", ranks).status());
  });
  for (int i = 0; i < 300; ++i) {
    EXPECT_OK(stores->scheduler().Apply(lease->epoch, backwards).status());
  }
  agent.join();
  stores.reset();  // closed connections have told their figures
  EXPECT_EQ(QueryOrDie(database,
                       "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"),
            "0");
}

TEST(Connections, LongSeriesIsDeletedInPieces) {
  const std::string database = NewDatabase();
  auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  const auto job = stores->jobs().Submit(Named("a"));
  ASSERT_OK(job.status());
  ASSERT_OK(stores->jobs().Cancel({"default", "a"}, 0, {"TEST", "a test"}).status());
  QueryOrDie(database, absl::StrCat("INSERT INTO metrics SELECT '", job->uid,
                                    "', 10 + i, now(), 1, i, 0, '{}', '{}' "
                                    "FROM generate_series(1, 150000) AS i"));
  EXPECT_OK(stores->jobs().Delete({"default", "a"}, 0));
  EXPECT_EQ(QueryOrDie(database, "SELECT count(*) FROM metrics"), "0");
  EXPECT_EQ(stores->jobs().Get({"default", "a"}).status().code(), absl::StatusCode::kNotFound);
}

// The server dies with a statement under way, or before the next one can be written while its last
// words are still to be read: of that, libpq says what it says without a SQLSTATE.
TEST(Connections, StatementThatTheServerDidNotAnswerIsRunAgain) {
  const std::string database = NewDatabase();
  const std::string words = SharedPostgres().Conninfo(database);
  const std::string proxy_folder = MakeTemporaryFolder();
  LosingProxy proxy(proxy_folder, words.substr(5, words.find(' ') - 5));
  auto stores = OpenOrDie(absl::StrCat("host=", proxy_folder, " user=trainyard dbname=", database));
  ASSERT_OK(stores->jobs().Submit(Named("a")).status());
  for (const char* prepared : {"not yet", "before"}) {
    proxy.LoseAnswerTo("GetJob");
    EXPECT_OK(stores->jobs().Get({"default", "a"}).status()) << "prepared: " << prepared;
    EXPECT_TRUE(proxy.lost());
  }
  proxy.HangUpAfter("BEGIN");
  EXPECT_OK(stores->jobs().Get({"default", "a"}).status());
  EXPECT_TRUE(proxy.lost());
  proxy.LoseAnswerTo("UpdateJob");
  const auto cancelled = stores->jobs().Cancel({"default", "a"}, 1, {"TEST", "a test"});
  ASSERT_OK(cancelled.status());
  EXPECT_EQ(cancelled->version, 2);
  EXPECT_TRUE(proxy.lost());
  EXPECT_EQ(stores->jobs().ReadFeed(cancelled->uid, 0, 10)->size(), 2u);
  stores.reset();
  std::filesystem::remove_all(proxy_folder);
}

// Every write, with its COMMIT answered by a broken connection.
TEST(Connections, CommitWhoseAnswerIsLostIsNotDoneTwice) {
  const std::string database = NewDatabase();
  const std::string words = SharedPostgres().Conninfo(database);
  const std::string folder = words.substr(5, words.find(' ') - 5);
  const std::string proxy_folder = MakeTemporaryFolder();
  LosingProxy proxy(proxy_folder, folder);
  auto stores = OpenOrDie(absl::StrCat("host=", proxy_folder, " user=trainyard dbname=", database));
  const auto losing = [&](const auto& call, const std::string& commit = "COMMIT") {
    proxy.LoseAnswerTo(commit);
    auto result = call();
    EXPECT_TRUE(proxy.lost());
    return result;
  };
  NodeRecord node;
  node.name = "n1";
  node.slots = {{.index = 0}};
  EXPECT_OK(losing([&] { return stores->fleet().RegisterNode(node, absl::Hours(1)); }).status());

  JobRecord unnamed = Named("a");
  unnamed.request_id.clear();  // nothing but the uid to find it by
  // One statement that commits itself; the other submission prepares it.
  ASSERT_OK(stores->jobs().Submit(Named("before")).status());
  const auto job = losing([&] { return stores->jobs().Submit(unnamed); }, "InsertJob");
  ASSERT_OK(job.status());
  ExpectJobsOnce(*stores, 2);

  const auto lease =
      losing([&] { return stores->scheduler().Lead("me", absl::Hours(1), std::nullopt); });
  ASSERT_OK(lease.status());
  EXPECT_EQ(lease->epoch, 1);
  const Placement placement{.job_uid = job->uid, .job_version = 1, .ranks = {{"n1", {0}}}};
  const auto placed =
      losing([&] { return stores->scheduler().Apply(lease->epoch, {.placements = {placement}}); });
  ASSERT_OK(placed.status());
  EXPECT_EQ(*placed, 1);  // somebody must be woken

  EventWriter writer;
  std::vector<RankEvents> group;
  group.push_back({"n1", {job->uid, 1, 0}, writer.Restored(0).Take()});
  group.push_back({"n1", {job->uid, 1, 0}, writer.Train(1).Take()});
  for (const auto& answer : losing([&] { return stores->fleet().AppendGroup(group); })) {
    ASSERT_OK(answer.status());
    EXPECT_FALSE(answer->fenced);
    EXPECT_TRUE(answer->job_changed);
    EXPECT_FALSE(answer->items_known);
    EXPECT_EQ(answer->items, nullptr);
  }
  for (const bool last : {false, true}) {
    writer.Restored(0).Train(last ? 2 : 1);
    if (last) writer.Finished(2).Exited();
    const std::vector<RankEventRecord> events = writer.Take();
    const auto appended = losing([&] {
      return stores->fleet().AppendEvents({"n1", {job->uid, 1, 0}, events});
    });
    ASSERT_OK(appended.status());
    EXPECT_FALSE(appended->fenced);
    EXPECT_TRUE(appended->job_changed);
    EXPECT_FALSE(appended->items_known);
    EXPECT_EQ(appended->acked_sequence, events.back().sequence);
  }
  EXPECT_EQ(stores->jobs().ReadMetrics(job->uid, {})->size(), 2u);
  EXPECT_EQ(stores->jobs().ReadFeed(job->uid, 0, 100)->back().sequence, 7);
  EXPECT_OK(losing([&] { return stores->jobs().Delete({"default", "a"}, 0); }));

  ASSERT_OK(stores->jobs().Submit(Named("b")).status());
  const auto cancelled = losing([&] {
    return stores->jobs().Cancel({"default", "b"}, 1, {"TEST", "a test"});
  });
  ASSERT_OK(cancelled.status());
  EXPECT_EQ(cancelled->version, 2);
  stores.reset();
  std::filesystem::remove_all(proxy_folder);
}

TEST(Connections, ABatchWhoseAnswerIsLostIsNotDoneTwice) {
  const std::string database = NewDatabase();
  const std::string words = SharedPostgres().Conninfo(database);
  const std::string proxy_folder = MakeTemporaryFolder();
  LosingProxy proxy(proxy_folder, words.substr(5, words.find(' ') - 5));
  auto stores = OpenOrDie(absl::StrCat("host=", proxy_folder, " user=trainyard dbname=", database));
  std::vector<JobRecord> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(Named(absl::StrCat("j", i)));
    jobs.back().request_id.clear();  // nothing but the uid to find it by
  }
  proxy.LoseAnswerTo("INSERT INTO job_specs");
  for (const auto& answer : stores->jobs().SubmitMany(jobs)) EXPECT_OK(answer.status());
  EXPECT_TRUE(proxy.lost());
  ExpectJobsOnce(*stores, 3);
  stores.reset();
  std::filesystem::remove_all(proxy_folder);
}

}  // namespace
}  // namespace trainyard::testing
