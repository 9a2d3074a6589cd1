// What a session makes of its agent's messages and of its store.

#include <gmock/gmock.h>

#include <limits>

#include "server/fleet/decode.h"
#include "tests/unit/server/agent_session_fixture.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Decode, HealthOfWhatAnAgentMaySay) {
  v1::Heartbeat heartbeat;
  EXPECT_FALSE(DecodeReport(heartbeat).disk_free_bytes.has_value()) << "an agent of before";
  v1::NodeHealth& health = *heartbeat.mutable_health();
  NodeReport report = DecodeReport(heartbeat);
  EXPECT_EQ(report.disk_free_bytes, 0);
  EXPECT_FALSE(report.disk_total_bytes.has_value());
  EXPECT_FALSE(report.memory_free_bytes.has_value());
  health.set_disk_total_bytes(5);
  health.set_memory_total_bytes(6);
  health.set_memory_free_bytes(-1);
  health.set_failed_starts(-7);
  health.set_failed_writes(8);
  health.set_state_dir(std::string("/a\0b", 4) + std::string(10000, 'x'));
  report = DecodeReport(heartbeat);
  EXPECT_EQ(report.disk_total_bytes, 5);
  EXPECT_EQ(report.memory_free_bytes, 0);
  EXPECT_EQ(report.memory_total_bytes, 6);
  EXPECT_EQ(report.failed_starts, 0);
  EXPECT_EQ(report.failed_writes, 8);
  EXPECT_LT(report.state_dir.size(), 2000u);
  EXPECT_EQ(report.state_dir.find('\0'), std::string::npos);
}

TEST(Decode, UsageOfWhatADriverMaySay) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  v1::Heartbeat heartbeat;
  auto& usage = *heartbeat.mutable_usage();
  usage[3].set_utilization(0.5);
  usage[3].set_memory_used_bytes(1 << 20);
  usage[3].set_temperature_celsius(61);
  usage[3].set_power_watts(412);
  usage[3].set_last_xid(79);
  usage[1].set_utilization(kNan);
  usage[1].set_memory_used_bytes(-1);
  usage[1].set_temperature_celsius(1e300);
  usage[1].set_power_watts(-kNan);
  usage[1].set_last_xid(-5);
  usage[2].set_utilization(1.5);
  usage[-1].set_utilization(0.5);
  usage[1 << 30].set_utilization(0.5);
  EXPECT_THAT(DecodeReport(heartbeat).usage,
              ElementsAre(SlotUsage{.index = 1}, SlotUsage{.index = 2},
                          SlotUsage{.index = 3,
                                    .utilization = 0.5,
                                    .memory_used_bytes = 1 << 20,
                                    .temperature_celsius = 61,
                                    .power_watts = 412,
                                    .last_xid = 79}));
}

TEST_F(AgentSessionTest, AHeartbeatTellsWhatGpusDo) {
  v1::AgentMessage message;
  message.mutable_heartbeat()->set_id(1);
  (*message.mutable_heartbeat()->mutable_usage())[2].set_power_watts(300);
  Hear(message);
  EXPECT_THAT(store_.usage, ElementsAre(SlotUsage{.index = 2, .power_watts = 300}));
}

TEST_F(AgentSessionTest, WhoLeavesIsSentTheSetThatIsItsLastAtOnce) {
  HearHeartbeat();
  const int before = store_.reads;
  v1::AgentMessage message;
  message.mutable_leaving()->set_grace_ms(30'000);
  Hear(message);
  EXPECT_EQ(store_.leaves_within, absl::Seconds(30));
  EXPECT_EQ(store_.reads, before + 1);
  message.mutable_leaving()->set_grace_ms(int64_t{1} << 60);
  Hear(message);
  EXPECT_EQ(store_.leaves_within, absl::Hours(24));
  message.mutable_leaving()->set_grace_ms(-1);
  Hear(message);
  EXPECT_EQ(store_.leaves_within, absl::ZeroDuration());
}

TEST_F(AgentSessionTest, LooksAgainWhenItsNodeIsNamedAndNotForOthers) {
  HearHeartbeat();
  const auto reads_after = [this](const std::string& topic) {
    const int before = store_.reads;
    wakeups_.Wake(topic);
    while (pool_.RunOne()) {
    }
    return store_.reads - before;
  };
  EXPECT_EQ(reads_after("node:n2"), 0);
  EXPECT_EQ(reads_after("queue"), 0);
  EXPECT_EQ(reads_after("node:n1"), 1);
  EXPECT_EQ(reads_after("fleet"), 1);
}

TEST_F(AgentSessionTest, ASetThatCannotHaveChangedIsNotRead) {
  const auto reads_of_a_heartbeat = [this] {
    const int before = store_.reads;
    HearHeartbeat();
    return store_.reads - before;
  };
  store_.over.clear();
  store_.wishes = "one";
  EXPECT_EQ(reads_of_a_heartbeat(), 1);
  EXPECT_EQ(reads_of_a_heartbeat(), 0);
  store_.wishes = "two";
  EXPECT_EQ(reads_of_a_heartbeat(), 1);
  store_.wishes = "";  // it changes with time
  EXPECT_EQ(reads_of_a_heartbeat(), 1);
  EXPECT_EQ(reads_of_a_heartbeat(), 1);
}

class QuietAgentSessionTest : public AgentSessionTest {
 protected:
  QuietAgentSessionTest() : AgentSessionTest(3) {}

  // How often the ranks of the node were read for it.
  int Lists(int heartbeats) {
    int lists = 0;
    store_.on_list = [&lists] { ++lists; };
    for (int i = 0; i < heartbeats; ++i) HearHeartbeat();
    store_.on_list = nullptr;
    return lists;
  }
};

TEST_F(QuietAgentSessionTest, HeartbeatsThatTellNothingNewAreSeldomHeldAgainstTheStore) {
  store_.over.clear();
  store_.wishes = "one";
  EXPECT_EQ(Lists(1), 1);
  EXPECT_EQ(Lists(2), 0);
  EXPECT_EQ(Lists(1), 1) << "a wake-up may have been lost";
  EXPECT_EQ(Lists(6), 2);
}

TEST_F(QuietAgentSessionTest, RanksThatAreOverAreReportedAbsentThoughNothingIsNew) {
  store_.over.clear();
  store_.wishes = "one";
  HearHeartbeat();
  store_.over = {{"job", 1, 0}};
  Lists(2);
  EXPECT_THAT(store_.absent, IsEmpty());
  Lists(1);
  EXPECT_THAT(store_.absent, ElementsAre(RankId{"job", 1, 0}));
}

TEST_F(QuietAgentSessionTest, TheHeartbeatAfterAWakeUpIsHeldAgainstTheStore) {
  store_.over.clear();
  store_.wishes = "one";
  HearHeartbeat();
  store_.over = {{"job", 1, 0}};
  wakeups_.Wake("node:n1");
  HearHeartbeat();
  EXPECT_THAT(store_.absent, ElementsAre(RankId{"job", 1, 0}));
}

TEST_F(QuietAgentSessionTest, ASetThatChangesWithTimeIsReadWithEachHeartbeat) {
  store_.over.clear();
  store_.wishes = "";
  EXPECT_EQ(Lists(4), 4);
}

TEST_F(AgentSessionTest, AnAgentIsToldThatTheStoreIsAwayThoughACallToItHangs) {
  bool called = false;
  store_.on_list = [this, &called] {
    called = true;
    fleet_.SetStoreAway(absl::UnavailableError("no answer for 3 s"));
    EXPECT_EQ(link_.end, absl::UnavailableError("no answer for 3 s")) << "before the call returns";
  };
  HearHeartbeat();
  EXPECT_TRUE(called);
  EXPECT_EQ(link_.acknowledged, 1) << "the lease was renewed before";
  EXPECT_EQ(fleet_.connected(), 0);
}

TEST_F(AgentSessionTest, TheLeaseIsKeptWhileEventsCannotBeStored) {
  store_.over.clear();
  store_.events_are_refused = true;
  HearNotice(1);
  HearHeartbeat();
  const absl::Time bound = absl::Now() + absl::Seconds(30);
  while (link_.acknowledged == 0 && absl::Now() < bound) pool_.RunOne();  // after a pause
  EXPECT_EQ(link_.acknowledged, 1);
  EXPECT_FALSE(link_.end) << *link_.end;
  EXPECT_THAT(store_.events, IsEmpty());
  store_.events_are_refused = false;
  while (store_.events.empty() && absl::Now() < bound) pool_.RunOne();
  EXPECT_EQ(store_.events.size(), 1u);
}

TEST_F(AgentSessionTest, RankThatIsOverAndDoesNotRunIsReportedAbsent) {
  HearHeartbeat();
  EXPECT_FALSE(link_.end) << *link_.end;
  EXPECT_THAT(store_.absent, ElementsAre(RankId{"job", 1, 0}));
}

TEST_F(AgentSessionTest, WhatNobodyNeedsOfTheMemoryOfANodeIsFreed) {
  HearHeartbeat();
  EXPECT_THAT(link_.freed, IsEmpty()) << "it has nothing";
  v1::AgentMessage message;
  message.mutable_heartbeat()->set_id(2);
  message.mutable_heartbeat()->set_desired_version(1);
  for (const int64_t attempt : {1, 2}) {
    v1::LeftState& left = *message.mutable_heartbeat()->add_left_states();
    left.set_job_uid("job");
    left.set_attempt(attempt);
  }
  Hear(message);
  EXPECT_FALSE(link_.end) << *link_.end;
  ASSERT_EQ(link_.freed.size(), 1u);
  ASSERT_EQ(link_.freed[0].states_size(), 1);
  EXPECT_EQ(link_.freed[0].states(0).attempt(), 1);
}

TEST_F(AgentSessionTest, SpecThatCannotBeReadEndsItsRankAndNobodyElse) {
  DesiredRank good{.rank = {.id = {"good", 1, 0}}, .job = {.uid = "good"}};
  DesiredRank bad{.rank = {.id = {"bad", 1, 0}}, .job = {.uid = "bad", .spec = "\xFF"}};
  store_.desired = {bad, good};
  HearHeartbeat();
  EXPECT_FALSE(link_.end) << *link_.end;
  ASSERT_EQ(link_.desired.assignments_size(), 1);
  EXPECT_EQ(link_.desired.assignments(0).key().job_uid(), "good");
  ASSERT_EQ(store_.events.size(), 1u);
  const auto* failure = std::get_if<FailureRecord>(&store_.events[0].what);
  ASSERT_NE(failure, nullptr);
  EXPECT_THAT(failure->message, HasSubstr("the stored spec cannot be read"));
}

TEST_F(AgentSessionTest, SessionsRenewTheirLeasesTogether) {
  HearHeartbeat();
  Recorder other_link;
  const auto other =
      fleet_.Make([] { return absl::StatusOr<std::optional<NodeKey>>(std::nullopt); }, other_link);
  fleet_.Begin(other);
  v1::AgentMessage message;
  message.mutable_register_()->set_node("n2");
  message.mutable_register_()->set_incarnation("i1");
  message.mutable_register_()->set_address("there");
  message.mutable_register_()->set_protocol_version(1);
  while (pool_.RunOne()) {
  }
  other->Receive(message);
  while (pool_.RunOne()) {
  }
  store_.groups.clear();
  store_.over.clear();
  message.mutable_heartbeat()->set_id(7);
  session_->Receive(message);
  other->Receive(message);
  while (pool_.RunOne()) {
  }
  EXPECT_THAT(store_.groups, ElementsAre(2));
  EXPECT_EQ(other_link.acknowledged, 7);
  EXPECT_EQ(link_.acknowledged, 7);
}

TEST_F(AgentSessionTest, AHeartbeatIsAcknowledgedOnceTheStoreIsBack) {
  store_.over.clear();
  store_.away = 2;
  HearHeartbeat();
  EXPECT_EQ(link_.acknowledged, 0);
  const absl::Time bound = absl::Now() + absl::Seconds(30);
  while (link_.acknowledged == 0 && absl::Now() < bound) pool_.RunOne();  // after two pauses
  EXPECT_EQ(link_.acknowledged, 1);
  EXPECT_FALSE(link_.end) << *link_.end;
}

TEST_F(AgentSessionTest, NothingIsAbsentByTheWordOfAnAgentWhoseSuccessorMayRunIt) {
  // In the middle of the heartbeat a newer agent registers, is told to start the rank, and does;
  // then the job is cancelled.
  store_.on_list = [this] {
    NodeRecord newer{.name = "n1", .incarnation = "i2"};
    EXPECT_TRUE(store_.RegisterNode(newer, absl::Seconds(10)).ok());
  };
  HearHeartbeat();
  EXPECT_THAT(store_.absent, IsEmpty());
  ASSERT_TRUE(link_.end);
  EXPECT_TRUE(absl::IsAborted(*link_.end)) << *link_.end;
}

TEST_F(AgentSessionTest, WithoutAListenerEverybodyIsWokenForAFeed) {
  store_.items_known = true;
  HearNotice(1);
  EXPECT_THAT(wakeups_.woken, ElementsAre("all job:job"));
}

class ToldSessionTest : public AgentSessionTest {
 protected:
  ToldSessionTest() : AgentSessionTest(1, [](const std::string&, const SharedItems&) {}) {}
};

TEST_F(ToldSessionTest, OnlyOthersAreWokenForWhatTheListenerWasTold) {
  store_.items_known = true;
  HearNotice(1);
  EXPECT_THAT(wakeups_.woken, ElementsAre("others job:job"));
  store_.job_changed = true;
  HearNotice(2);
  EXPECT_THAT(wakeups_.woken, ElementsAre("others job:job", "others job:job"));
  // Stored by the try whose answer was lost: the listener was not told.
  store_.items_known = false;
  HearNotice(2);
  EXPECT_EQ(wakeups_.woken.size(), 3u);
  EXPECT_EQ(wakeups_.woken.back(), "all job:job");
}

}  // namespace
}  // namespace trainyard
