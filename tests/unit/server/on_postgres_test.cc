// The server over a real database: how long the way to the agent takes, and what a crash of
// PostgreSQL does.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "storage/postgres/postgres.h"
#include "tests/conformance/postgres_fixture.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

// The stores over an empty database, which gets its tables.
auto OpenMigrated(const std::string& conninfo) {
  const absl::Status migrated = postgres::Migrate(conninfo);
  EXPECT_TRUE(migrated.ok()) << migrated;
  return postgres::Open(conninfo).value();
}

TEST(OnPostgres, SubmitReachesTheAgentInMillisecondsAndACrashLosesNothing) {
  auto postgres = testing::PostgresFixture::Start({.fsync = true});
  ASSERT_TRUE(postgres.ok()) << postgres.status();
  Rig rig(OpenMigrated((*postgres)->Conninfo()), Rig::FastOptions());
  ScriptedAgent agent(rig);
  agent.Register("n1", 64);
  agent.Welcomed();
  agent.NextDesired(0);

  std::vector<double> ms;
  v1::DesiredSet desired;
  std::string name;
  for (int i = 0; i < 20; ++i) {
    const absl::Time begin = absl::Now();
    name = rig.Submit(SmallJob("job-" + std::to_string(i))).name();
    desired = agent.NextDesired(i + 1);
    ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
  }
  std::sort(ms.begin(), ms.end());
  std::printf("submit to desired set on PostgreSQL: median %.1f ms, best %.1f ms, worst %.1f ms\n",
              ms[ms.size() / 2], ms.front(), ms.back());
  EXPECT_LT(ms.front(), 500) << "somebody polls";

  // The newest job reports while the database is dead: nothing is acknowledged before it is stored.
  const v1::Assignment* newest = nullptr;
  for (const v1::Assignment& assignment : desired.assignments()) {
    if (assignment.job_name() == name) newest = &assignment;
  }
  ASSERT_NE(newest, nullptr);
  ASSERT_TRUE((*postgres)->StopImmediately().ok());
  EventScript script;
  const std::vector<v1::RankEvent> first = {script.Started(), script.Restored(0),
                                            script.Metrics(1, 2.0)};
  agent.SendEvents(newest->key(), first);
  ASSERT_TRUE((*postgres)->StartAgain().ok());
  // Where that took 3 s, the server has ended the session, and the agent begins another one.
  std::optional<ScriptedAgent> again;
  const auto acked = [](const v1::ServerMessage& message) { return message.has_ack(); };
  std::optional<v1::ServerMessage> ack = agent.TryNext(acked);
  const absl::Time deadline = absl::Now() + kPatience;
  while (!ack.has_value() && absl::Now() < deadline) {
    again.emplace(rig);
    again->Register("n1", 64);
    again->SendEvents(newest->key(), first);
    ack = again->TryNext(acked);
  }
  ASSERT_TRUE(ack.has_value());
  EXPECT_EQ(ack->ack().sequence(), 3);
  ScriptedAgent& last = again.has_value() ? *again : agent;
  last.SendEvents(newest->key(),
                  {script.Metrics(2, 1.5), script.Metrics(3, 1.0),
                   script.Checkpoint(3, newest->checkpoint_root() + "/step-00000003"),
                   script.Finished(3), script.Exited(0)});
  ASSERT_EQ(last.NextAck().sequence(), 8);
  const v1::Job done =
      rig.WaitFor(name, [](const v1::Job& job) { return job.state() == v1::SUCCEEDED; });
  EXPECT_EQ(done.step(), 3);
}

// A job of one arithmetic that has begun waits for such a node, also under another server, while
// others take the node that computes otherwise.
TEST(OnPostgres, AJobOfOneArithmeticIsBoundWhateverBecomesOfTheServer) {
  auto postgres = testing::PostgresFixture::Start();
  ASSERT_TRUE(postgres.ok()) << postgres.status();
  Rig rig(OpenMigrated((*postgres)->Conninfo()), Rig::FastOptions());
  constexpr int64_t kBytes = int64_t{8} << 30;
  const std::map<std::string, std::string> wide = {{"loops", "avx512"}},
                                           narrow = {{"loops", "avx2"}};
  v1::Job same = SmallJob("same");
  same.mutable_spec()->mutable_parallel()->set_arithmetic(v1::Parallel::SAME);
  const std::string name = rig.Submit(same).name();
  std::optional<ScriptedAgent> first;
  first.emplace(rig);
  first->Register("wide", 1, "i1", kBytes, v1::Resources::CPU, wide);
  const v1::RankKey key = first->NextDesired(1).assignments(0).key();
  EventScript script;
  first->SendEvents(key, {script.Started(), script.Restored(0, wide), script.Metrics(1, 4.0)});
  EXPECT_EQ(first->NextAck().sequence(), 3);

  // It leaves the node, and only another kind takes work.
  v1::DrainNodeRequest drain;
  drain.set_name("nodes/wide");
  v1::Node node;
  ASSERT_TRUE(rig.nodes().DrainNode(Rig::Context().get(), drain, &node).ok());
  first->SendEvents(key, {script.Finished(1, true), script.Exited(0)});
  rig.WaitFor(name, [](const v1::Job& job) { return job.state() == v1::QUEUED; });
  first.reset();
  rig.Restart();
  ScriptedAgent second(rig);
  second.Register("narrow", 2, "i1", kBytes, v1::Resources::CPU, narrow);
  const std::string other = rig.Submit(SmallJob("other")).name();
  EXPECT_EQ(second.NextDesired(1).assignments(0).job_name(), other);

  v1::ExplainJobRequest request;
  request.set_name(name);
  v1::ExplainJobResponse why;
  ASSERT_TRUE(rig.jobs().ExplainJob(Rig::Context().get(), request, &why).ok());
  EXPECT_EQ(why.job().state(), v1::QUEUED);
  EXPECT_NE(why.reason().message().find(
                "it began with 'loops: avx512': 0 of 2 slots that fit compute so"),
            std::string::npos)
      << why.reason().message();

  ScriptedAgent third(rig);
  third.Register("wider", 1, "i1", kBytes, v1::Resources::CPU, wide);
  EXPECT_EQ(third.NextDesired(1).assignments(0).job_name(), name);
}

// Each within 5 s, reads, writes, and a watch that begins.
TEST(OnPostgres, FrozenDatabaseIsUnavailableToUsersInTimeAndEverythingGoesOnAfterwards) {
  auto postgres = testing::PostgresFixture::Start();
  ASSERT_TRUE(postgres.ok()) << postgres.status();
  Rig rig(OpenMigrated((*postgres)->Conninfo()), Rig::FastOptions());
  ScriptedAgent agent(rig);
  agent.Register("n1", 64);
  agent.Welcomed();
  const std::string name = rig.Submit(SmallJob("before"), "request-1").name();
  agent.NextDesired(1);

  ASSERT_TRUE((*postgres)->Freeze().ok());
  agent.Heartbeat(1, 1);
  std::vector<std::thread> callers;
  for (int i = 0; i < 60; ++i) {
    callers.emplace_back([&rig, &name, i] {
      const absl::Time begin = absl::Now();
      grpc::Status status;
      if (i % 3 == 0) {
        v1::GetJobRequest request;
        request.set_name(name);
        v1::Job response;
        status = rig.jobs().GetJob(Rig::Context().get(), request, &response);
      } else if (i % 3 == 1) {
        v1::SubmitJobRequest request;
        request.set_parent("projects/default");
        request.set_request_id("while-" + std::to_string(i));
        *request.mutable_job() = SmallJob("while-" + std::to_string(i));
        v1::Job response;
        status = rig.jobs().SubmitJob(Rig::Context().get(), request, &response);
      } else {
        v1::WatchJobRequest request;
        request.set_name(name);
        const auto context = Rig::Context();
        const auto stream = rig.jobs().WatchJob(context.get(), request);
        v1::WatchJobResponse response;
        while (stream->Read(&response)) {
        }
        status = stream->Finish();
      }
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
      EXPECT_LT(absl::Now() - begin, absl::Seconds(5)) << i % 3;
    });
  }
  for (std::thread& caller : callers) caller.join();
  ASSERT_TRUE((*postgres)->Thaw().ok());

  // What was answered so may have been written: the same request id gives the same job.
  EXPECT_EQ(rig.Submit(SmallJob("while-1"), "while-1").name(), "projects/default/jobs/while-1");
  EXPECT_EQ(rig.Get(name).name(), name);

  // The agent was told to look for a server that reaches the store, and this one does again.
  EXPECT_EQ(agent.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  bool renewed = false;
  for (const absl::Time deadline = absl::Now() + kPatience; !renewed && absl::Now() < deadline;) {
    ScriptedAgent again(rig);
    again.Register("n1", 64);
    again.Heartbeat(2, 0);
    renewed = again
                  .TryNext([](const v1::ServerMessage& message) {
                    return message.has_lease() && message.lease().heartbeat_id() == 2;
                  })
                  .has_value();
  }
  EXPECT_TRUE(renewed);
}

}  // namespace
}  // namespace trainyard
