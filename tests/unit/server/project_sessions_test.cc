// What agents are given and asked of projects that run as users of their own.

#include <gmock/gmock.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/unit/server/agent_session_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

class ProjectSessionTest : public AgentSessionTest {};

// It would run the rank as itself.
TEST_F(ProjectSessionTest, AnAgentOfBeforeGetsNoRankOfAUser) {
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

TEST_F(ProjectSessionTest, WithoutOneThatLooksNobodyIsAsked) {
  bool unseen = false;
  EXPECT_EQ(fleet_.Look(v1::LookRequest(), absl::Now() + absl::Seconds(10), unseen).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace trainyard
