// One session step by step, over a store that says what the test wants.

#include "server/fleet/agent_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/fleet/decode.h"
#include "storage/local_wakeups.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A node with sessions, ranks that are over (listed as not gone, in no desired set), and what is
// wanted there.
class NodeStore : public FleetStore {
 public:
  absl::StatusOr<NodeRecord> RegisterNode(const NodeRecord& node, absl::Duration) override {
    newest_[node.name] = node.incarnation;
    return node;
  }
  std::vector<absl::Status> RenewLeases(const std::vector<LeaseRenewal>& renewals) override {
    groups.push_back(renewals.size());
    if (away > 0) {
      --away;
      return std::vector<absl::Status>(renewals.size(), absl::UnavailableError("away"));
    }
    std::vector<absl::Status> answers;
    for (const LeaseRenewal& renewal : renewals) {
      usage = renewal.report.usage;
      answers.push_back(renewal.incarnation == newest_[renewal.node]
                            ? absl::OkStatus()
                            : absl::AbortedError("a newer session began"));
    }
    return answers;
  }
  absl::StatusOr<std::vector<DesiredRank>> ReadDesired(const AgentIdentity&) override {
    ++reads;
    return desired;
  }
  absl::StatusOr<NodeRanks> ReadRanks(const std::string&) override {
    if (on_list) on_list();
    NodeRanks read{.wishes = wishes};
    for (const RankId& id : over) read.ranks.push_back({id, claim});
    return read;
  }
  absl::StatusOr<std::vector<LeftState>> FindUnneeded(
      const std::vector<LeftState>& states) override {
    std::vector<LeftState> found;
    for (const LeftState& state : states) {
      if (state.attempt < 2) found.push_back(state);
    }
    return found;
  }
  absl::StatusOr<bool> ReportAbsent(const AgentIdentity&,
                                    const std::vector<RankId>& ranks) override {
    absent.insert(absent.end(), ranks.begin(), ranks.end());
    return true;
  }
  absl::StatusOr<AppendResult> AppendEvents(const RankEvents& report) override {
    const std::vector<RankEventRecord>& more = report.events;
    if (events_are_refused) return absl::UnavailableError("away");
    events.insert(events.end(), more.begin(), more.end());
    AppendResult result{.acked_sequence = more.back().sequence};
    result.items_known = items_known;
    result.job_changed = job_changed;
    return result;
  }
  absl::StatusOr<std::vector<NodeRecord>> ListNodes() override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<NodeRecord> SetDraining(const std::string&, bool) override {
    return absl::UnimplementedError("");
  }
  absl::Status SetLeaving(const AgentIdentity& agent, absl::Duration grace) override {
    EXPECT_EQ(agent.node, "n1");
    leaves_within = grace;
    return absl::OkStatus();
  }
  absl::StatusOr<int> ConfirmEmpty(const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<RankRecord> FindRank(const std::string&, int64_t, int) override {
    return RankRecord();
  }
  absl::StatusOr<AttemptRecord> FindAttempt(const std::string&, int64_t) override {
    return AttemptRecord();
  }
  absl::StatusOr<std::vector<AttemptRecord>> ListAttempts(const std::string&) override {
    return absl::UnimplementedError("");
  }

  std::optional<absl::Duration> leaves_within;
  int reads = 0;               // of the desired set
  std::vector<size_t> groups;  // of renewals
  int away = 0;                // for so many of them
  std::vector<DesiredRank> desired;
  std::vector<SlotUsage> usage;
  std::vector<RankEventRecord> events;  // stored
  std::vector<RankId> over;
  Claim claim;         // to all of them
  std::string wishes;  // empty: to be read
  bool events_are_refused = false;
  bool items_known = false;  // of what is stored, and whether it changes the job
  bool job_changed = false;
  std::vector<RankId> absent;  // reported
  std::function<void()> on_list;

 private:
  std::map<std::string, std::string> newest_;  // incarnations by node
};

class Recorder : public AgentLink {
 public:
  void Send(const v1::ServerMessage& message) override {
    if (message.has_desired()) desired = message.desired();
    if (message.has_lease()) acknowledged = message.lease().heartbeat_id();
    if (message.has_free()) freed.push_back(message.free());
  }
  void ReadNext() override {}
  void Finish(const absl::Status& status) override { end = status; }

  std::optional<absl::Status> end;
  v1::DesiredSet desired;    // the newest
  int64_t acknowledged = 0;  // the newest heartbeat
  std::vector<v1::FreeStates> freed;
};

// Tells which feeds whom was woken for.
class FeedWakeups : public LocalWakeups {
 public:
  void Wake(const std::string& topic) override {
    if (topic.rfind("job:", 0) == 0) woken.push_back("all " + topic);
    LocalWakeups::Wake(topic);
  }
  void WakeOthers(const std::string& topic) override { woken.push_back("others " + topic); }

  std::vector<std::string> woken;
};

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

class AgentSessionTest : public ::testing::Test {
 protected:
  // `look_every`: so many heartbeats that tell nothing new.
  explicit AgentSessionTest(int look_every = 1, FeedListener listener = nullptr)
      : fleet_{store_,
               wakeups_,
               pool_,
               SystemClock(),
               {.heartbeats_per_look = look_every, .renewals_rest_per_node = absl::ZeroDuration()},
               std::move(listener)} {
    fleet_.Begin(session_);
    v1::AgentMessage hello;
    hello.mutable_register_()->set_node("n1");
    hello.mutable_register_()->set_incarnation("i1");
    hello.mutable_register_()->set_address("here");
    hello.mutable_register_()->set_protocol_version(1);
    Hear(hello);
    store_.over = {{"job", 1, 0}};
  }

  void Hear(const v1::AgentMessage& message) {
    while (pool_.RunOne()) {
    }
    session_->Receive(message);
    while (pool_.RunOne()) {
    }
  }

  // Under the first, empty set; nothing runs.
  void HearHeartbeat() {
    v1::AgentMessage message;
    message.mutable_heartbeat()->set_id(1);
    message.mutable_heartbeat()->set_desired_version(1);
    Hear(message);
  }

  // A notice of rank 0 of "job".
  void HearNotice(int64_t sequence) {
    v1::AgentMessage message;
    message.mutable_events()->mutable_key()->set_job_uid("job");
    message.mutable_events()->mutable_key()->set_attempt(1);
    v1::RankEvent& event = *message.mutable_events()->add_events();
    event.set_sequence(sequence);
    event.mutable_notice()->set_message("hello");
    Hear(message);
  }

  NodeStore store_;
  FeedWakeups wakeups_;
  TaskPool pool_{0};
  Fleet fleet_;
  Recorder link_;
  std::shared_ptr<AgentSession> session_ =
      fleet_.Make([] { return absl::StatusOr<std::optional<NodeKey>>(std::nullopt); }, link_);
};

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

// It would run the rank as itself.
TEST_F(AgentSessionTest, AnAgentOfBeforeGetsNoRankOfAUser) {
  DesiredRank rank;
  rank.rank.id = {"job", 1, 0};
  rank.rank.slots = {0};
  rank.job.spec = v1::JobSpec().SerializeAsString();
  rank.attempt.world_size = 1;
  store_.desired = {rank};
  wakeups_.Wake("node:n1");
  HearHeartbeat();
  EXPECT_EQ(link_.desired.assignments_size(), 1);
  store_.desired[0].unix_user = "ann";
  store_.desired[0].rank.id.attempt = 2;
  wakeups_.Wake("node:n1");
  HearHeartbeat();
  EXPECT_EQ(link_.desired.assignments_size(), 0);
  ASSERT_FALSE(store_.events.empty());
  const auto* failure = std::get_if<FailureRecord>(&store_.events.front().what);
  ASSERT_NE(failure, nullptr);
  EXPECT_THAT(failure->message, HasSubstr("would not run it as 'ann'"));
  EXPECT_TRUE(failure->retryable);
}

class LookingSessionTest : public AgentSessionTest {
 protected:
  LookingSessionTest() {
    fleet_.Begin(looking_);
    v1::AgentMessage hello;
    hello.mutable_register_()->set_node("n2");
    hello.mutable_register_()->set_incarnation("i2");
    hello.mutable_register_()->set_address("here");
    hello.mutable_register_()->set_protocol_version(1);
    hello.mutable_register_()->set_looks_at_files(true);
    Tell(hello);
  }
  void Tell(const v1::AgentMessage& message) {
    while (pool_.RunOne()) {
    }
    looking_->Receive(message);
    while (pool_.RunOne()) {
    }
  }
  // What the fleet makes of the agent's answer; without one, of its end.
  absl::StatusOr<v1::DataFacts> Look(const std::optional<v1::LookAnswer>& answer) {
    v1::LookRequest request;
    request.set_unix_user("ann");
    absl::StatusOr<v1::DataFacts> found = absl::UnknownError("not asked");
    looker_.looks = std::make_unique<absl::Notification>();
    std::thread caller(
        [&] { found = fleet_.Look(request, absl::Now() + absl::Seconds(10), unseen_); });
    looker_.looks->WaitForNotification();
    v1::AgentMessage message;
    if (answer.has_value()) {
      *message.mutable_look() = *answer;
      message.mutable_look()->set_request_id("of nobody");
      Tell(message);  // passes without a trace
      message.mutable_look()->set_request_id(looker_.look.request_id());
      Tell(message);
    } else {
      looking_->Leave();
      while (pool_.RunOne()) {
      }
    }
    caller.join();
    return found;
  }

  struct Looker : Recorder {
    void Send(const v1::ServerMessage& message) override {
      if (!message.has_look()) return;
      look = message.look();
      looks->Notify();
    }
    v1::LookRequest look;
    std::unique_ptr<absl::Notification> looks;
  } looker_;
  std::shared_ptr<AgentSession> looking_ =
      fleet_.Make([] { return absl::StatusOr<std::optional<NodeKey>>(std::nullopt); }, looker_);
  bool unseen_ = false;
};

TEST_F(LookingSessionTest, WhoLooksIsAskedAndBelievedWithinReason) {
  v1::LookAnswer answer;
  answer.mutable_facts()->set_vocab(65);
  EXPECT_EQ(Look(answer)->vocab(), 65);
  EXPECT_EQ(looker_.look.unix_user(), "ann");
  answer.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kOk));
  answer.mutable_error()->set_message("a\x1b[31m\xff");
  const absl::Status odd = Look(answer).status();
  EXPECT_EQ(odd.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(odd.message(), "a?[31m? (seen from nodes/n2)");
  EXPECT_FALSE(unseen_);
  answer.mutable_error()->set_unseen(true);
  EXPECT_FALSE(Look(answer).ok());
  EXPECT_TRUE(unseen_);
  EXPECT_EQ(Look(std::nullopt).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(AgentSessionTest, WithoutOneThatLooksNobodyIsAsked) {
  bool unseen = false;
  EXPECT_EQ(fleet_.Look(v1::LookRequest(), absl::Now() + absl::Seconds(10), unseen).status().code(),
            absl::StatusCode::kUnavailable);
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
