// A PostgreSQL that does not answer, and one that became a stand-by.

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "storage/call_limit.h"
#include "storage/postgres/postgres.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

constexpr absl::Duration kLimit = absl::Milliseconds(500);
// For a loaded machine; without a bound the calls would wait for ever.
constexpr absl::Duration kSlack = absl::Seconds(3);

JobRecord NamedJob(const std::string& id) {
  JobRecord job;
  job.project = "default";
  job.job_id = id;
  job.request_id = id;
  return job;
}

std::unique_ptr<PostgresFixture> StartOrDie() {
  auto server = PostgresFixture::Start();
  EXPECT_OK(server.status());
  EXPECT_OK(postgres::Migrate((*server)->Conninfo()));
  return *std::move(server);
}

std::unique_ptr<Stores> OpenWith(const std::string& conninfo,
                                 const postgres::Options& options = {}) {
  auto stores = postgres::Open(conninfo, options);
  EXPECT_OK(stores.status());
  return *std::move(stores);
}

// Runs `call` in `threads` threads at once, within kLimit each, and expects kUnavailable of all.
template <typename Call>
void ExpectUnavailableInTime(int threads, const Call& call) {
  std::vector<std::thread> callers;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < threads; ++i) {
    callers.emplace_back([&call, i] {
      const CallLimit limit(kLimit);
      const absl::Status status = call(i);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_LT(absl::Now() - begin, kLimit + kSlack);
}

TEST(Frozen, ReadsAndWritesEndInTimeAndGoOnAfterwards) {
  const auto server = StartOrDie();
  const auto stores = OpenWith(server->Conninfo());
  ASSERT_OK(stores->jobs().Submit(NamedJob("before")).status());
  ASSERT_OK(server->Freeze());
  const absl::Cleanup thaw = [&] { EXPECT_OK(server->Thaw()); };
  // More callers than connections; the pool had one, the others are to be made.
  ExpectUnavailableInTime(20, [&](int i) {
    return i % 2 == 0 ? stores->jobs().Get({"default", "before"}).status()
                      : stores->jobs().Submit(NamedJob(absl::StrCat("while-", i))).status();
  });
  // By now it is known to be silent: all but one are answered at once.
  ExpectUnavailableInTime(20, [&](int) { return stores->Probe(); });

  ASSERT_OK(server->Thaw());
  const absl::Time begin = absl::Now();
  const CallLimit limit(absl::Seconds(20));
  EXPECT_OK(stores->Probe());
  for (int i = 1; i < 20; i += 2) {  // a write that was answered so may have happened: the same job
    EXPECT_OK(stores->jobs().Submit(NamedJob(absl::StrCat("while-", i))).status());
  }
  EXPECT_OK(stores->jobs().Get({"default", "before"}).status());
  EXPECT_LT(absl::Now() - begin, kSlack);
  EXPECT_EQ(stores->jobs().List("default", {}, 100, "")->jobs.size(), 11u);
}

TEST(Frozen, CallsWithoutALimitOfTheirOwnEndByThatOfTheStore) {
  const auto server = StartOrDie();
  const auto stores =
      OpenWith(server->Conninfo(), {.longest_call = kLimit, .longest_agent_call = kLimit});
  ASSERT_OK(stores->Probe());
  ASSERT_OK(server->Freeze());
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(absl::IsUnavailable(stores->Probe()));
  EXPECT_TRUE(absl::IsUnavailable(RenewLease(stores->fleet(), "n1", "i1", absl::Seconds(1), {})));
  EXPECT_LT(absl::Now() - begin, 2 * kLimit + kSlack);
  ASSERT_OK(server->Thaw());
}

TEST(Frozen, StoresEndWhileTheDatabaseIsFrozen) {
  const auto server = StartOrDie();
  auto stores = OpenWith(server->Conninfo());
  ASSERT_OK(stores->Probe());
  ASSERT_OK(server->Freeze());
  const absl::Time begin = absl::Now();
  stores.reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  ASSERT_OK(server->Thaw());
}

TEST(Frozen, NextHostIsTakenWhenTheFirstDoesNotAnswer) {
  const auto frozen = StartOrDie();
  const auto alive = StartOrDie();
  const auto host = [](const std::string& conninfo) {
    return conninfo.substr(5, conninfo.find(' ') - 5);
  };
  const auto stores =
      OpenWith(absl::StrCat("host=", host(frozen->Conninfo()), ",", host(alive->Conninfo()),
                            " user=trainyard dbname=postgres"));
  ASSERT_OK(frozen->Freeze());
  const absl::Time begin = absl::Now();
  {
    const CallLimit limit(absl::Seconds(4));
    EXPECT_OK(stores->Probe());
    EXPECT_OK(stores->jobs().Submit(NamedJob("a")).status());
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(4) + kSlack);
  ASSERT_OK(frozen->Thaw());
}

// What a fail-over leaves behind: connections to what is now a stand-by.
TEST(StandBy, ConnectionsToOneThatTakesNoWritesAreDropped) {
  const auto server = StartOrDie();
  ASSERT_OK(server->Query("postgres", "ALTER ROLE trainyard SET default_transaction_read_only=on")
                .status());
  // A user who allows any session gets one that cannot write.
  const auto stores = OpenWith(server->Conninfo() + " target_session_attrs=any");
  EXPECT_TRUE(absl::IsUnavailable(stores->jobs().Submit(NamedJob("a")).status()));
  ASSERT_OK(
      server
          ->Query("postgres",
                  "BEGIN READ WRITE; ALTER ROLE trainyard RESET default_transaction_read_only; "
                  "COMMIT")
          .status());
  EXPECT_OK(stores->jobs().Submit(NamedJob("a")).status());
}

TEST(StandBy, IsNotConnectedToUnlessAsked) {
  const auto server = StartOrDie();
  ASSERT_OK(server->Query("postgres", "ALTER ROLE trainyard SET default_transaction_read_only=on")
                .status());
  EXPECT_TRUE(absl::IsUnavailable(OpenWith(server->Conninfo())->Probe()));
}

}  // namespace
}  // namespace trainyard::testing
