#include "server/fleet/provision/provisioner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/clock.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = Allocation::State;

class TestClock : public Clock {
 public:
  absl::Time Now() override { return absl::FromUnixSeconds(1000000) + passed; }
  absl::Duration SinceBoot() override { return passed; }
  absl::Duration passed = absl::Seconds(1);
};

// What an engine would have, in memory.
struct TestEngine {
  std::vector<Allocation> allocations;
  std::vector<std::string> ensured;  // node names, as they were asked
  std::vector<std::string> released;
  absl::Status away;
  bool loses_answers = false;
  size_t most = 1000;  // at once
  int ids = 0;
};

class TestEngineView : public NodeEngine {
 public:
  explicit TestEngineView(TestEngine& engine) : engine_(engine) {}
  absl::StatusOr<std::vector<std::string>> Ensure(const Pool&, const std::string& ask,
                                                  const std::vector<int>& indices) override {
    if (!engine_.away.ok()) return engine_.away;
    if (indices.size() > engine_.most) return absl::UnavailableError("too many");
    std::vector<std::string> ids;
    for (const int index : indices) {
      engine_.ensured.push_back(AskedNodeName(ask, index));
      engine_.allocations.push_back({.node = AskedNodeName(ask, index),
                                     .id = std::to_string(++engine_.ids),
                                     .words = "test PENDING"});
      ids.push_back(engine_.allocations.back().id);
    }
    if (engine_.loses_answers) return absl::DeadlineExceededError("no answer");
    return ids;
  }
  absl::StatusOr<std::vector<Allocation>> List() override {
    if (!engine_.away.ok()) return engine_.away;
    return engine_.allocations;
  }
  absl::Status Release(const std::vector<std::string>& ids) override {
    for (const std::string& id : ids) {
      engine_.released.push_back(id);
      for (Allocation& one : engine_.allocations) {
        if (one.id != id) continue;
        one.state = State::kOver;
        one.proven_gone = true;
      }
    }
    return absl::OkStatus();
  }

 private:
  TestEngine& engine_;
};

class ProvisionerTest : public ::testing::Test {
 protected:
  ProvisionerTest() {
    const auto lease = stores_.scheduler().Lead("one", absl::Seconds(4), 0);
    EXPECT_TRUE(lease.ok());
    view_.leader_epoch = lease->epoch;
    Begin();
  }

  void Begin() {
    ProvisionerOptions options;
    options.pools = {{.name = "a",
                      .max = 4,
                      .idle_ttl = absl::Seconds(60),
                      .boot_timeout = absl::Seconds(30),
                      .device = "CPU",
                      .slots = 1,
                      .bytes = int64_t{8} << 30}};
    options.make_engine = [this](const std::string& yard_id) {
      EXPECT_EQ(yard_id, "memory");
      return std::make_unique<TestEngineView>(engine_);
    };
    provisioner_ = std::make_unique<Provisioner>(stores_, clock_, options);
  }

  void Wait(int64_t jobs) {
    view_.waiting.clear();
    if (jobs > 0) view_.waiting.push_back({.demand = {.count = 1, .device = "CPU"}, .jobs = jobs});
  }

  absl::Status Turn(absl::Duration later = absl::Seconds(40)) {
    clock_.passed += later;
    view_.now = clock_.Now();
    return provisioner_->Turn(view_);
  }

  // The agent of a node is there.
  void Register(const std::string& node) {
    EXPECT_TRUE(stores_.fleet()
                    .RegisterNode({.name = node,
                                   .incarnation = "i",
                                   .address = "h",
                                   .slots = {{.device = "CPU", .memory_bytes = int64_t{8} << 30}}},
                                  absl::Seconds(10))
                    .ok());
    view_.nodes.push_back({.name = node,
                           .takes_work = true,
                           .slots = {{.device = "CPU", .bytes = int64_t{8} << 30, .free = true}}});
  }

  std::vector<NodeRequest> Requests() {
    return stores_.provision().ListNodeRequests(WhichRequests::kAll)->requests;
  }

  TestClock clock_;
  MemoryStores stores_{clock_};
  TestEngine engine_;
  CapacityView view_;
  std::unique_ptr<Provisioner> provisioner_;
};

TEST_F(ProvisionerTest, ANodeComesWhenAJobWaitsAndGoesWhenNobodyNeedsIt) {
  ASSERT_TRUE(Turn().ok());
  EXPECT_THAT(engine_.ensured, IsEmpty());
  Wait(2);
  ASSERT_TRUE(Turn(absl::ZeroDuration()).ok()) << "at once, whenever the next sweep is due";
  ASSERT_THAT(engine_.ensured, SizeIs(2));
  ASSERT_TRUE(Turn().ok());
  EXPECT_THAT(engine_.ensured, SizeIs(2)) << "they are coming";
  EXPECT_EQ(Requests()[0].state, NodeRequestState::kAsked);
  EXPECT_EQ(Requests()[0].engine_words, "test PENDING");

  for (const std::string& node : engine_.ensured) Register(node);
  Wait(0);
  ASSERT_TRUE(Turn().ok());
  EXPECT_THAT(engine_.released, IsEmpty());
  ASSERT_TRUE(Turn(absl::Seconds(61)).ok());
  EXPECT_THAT(engine_.released, SizeIs(2));
  EXPECT_EQ(Requests()[0].state, NodeRequestState::kReleasing);
  const auto nodes = stores_.fleet().ListNodes();
  EXPECT_TRUE(nodes->front().draining) << "nothing is placed on what goes";
  ASSERT_TRUE(Turn().ok());
  EXPECT_EQ(Requests()[0].state, NodeRequestState::kEnded);
  EXPECT_TRUE(Requests()[0].proven_gone);

  // Once its lease is over nothing is left of the node, and an hour later of the request.
  ASSERT_TRUE(stores_.scheduler()
                  .Apply(view_.leader_epoch,
                         {.lost_nodes = {{.name = engine_.ensured[0], .beat = nodes->at(0).beat},
                                         {.name = engine_.ensured[1], .beat = nodes->at(1).beat}}})
                  .ok());
  for (CapacityView::Node& node : view_.nodes) node.away = true;
  ASSERT_TRUE(Turn().ok());
  EXPECT_THAT(*stores_.fleet().ListNodes(), IsEmpty());
  view_.nodes.clear();
  EXPECT_THAT(Requests(), SizeIs(2));
  ASSERT_TRUE(Turn(absl::Hours(2)).ok());
  EXPECT_THAT(Requests(), IsEmpty());
}

TEST_F(ProvisionerTest, AnAnswerThatIsLostLeavesNothingOver) {
  engine_.loses_answers = true;
  Wait(1);
  ASSERT_TRUE(Turn().ok());
  ASSERT_THAT(engine_.allocations, SizeIs(1));
  EXPECT_EQ(Requests()[0].state, NodeRequestState::kWanted);
  EXPECT_EQ(Requests()[0].engine_words, "no answer");
  engine_.loses_answers = false;
  ASSERT_TRUE(Turn().ok());
  EXPECT_THAT(engine_.allocations, SizeIs(1)) << "the sweep found it";
  EXPECT_EQ(Requests()[0].state, NodeRequestState::kAsked);
}

TEST_F(ProvisionerTest, AServerThatDiesInBetweenLeavesNothingOver) {
  // It wrote the request, and ended before it asked.
  ASSERT_TRUE(stores_.provision()
                  .AddNodeRequests(view_.leader_epoch,
                                   {{.node = "a-0-1", .pool = "a"}, {.node = "a-0-2", .pool = "a"}})
                  .ok());
  // Another one had asked twice for the second.
  engine_.allocations = {{.node = "a-0-2", .id = "7"}, {.node = "a-0-2", .id = "8"}};
  Wait(2);
  ASSERT_TRUE(Turn().ok());
  EXPECT_THAT(engine_.ensured, ElementsAre("a-0-1"));
  EXPECT_THAT(engine_.released, ElementsAre("8"));
}

TEST_F(ProvisionerTest, AnEngineThatIsAwayIsAskedAgainLater) {
  engine_.away = absl::UnavailableError("no slurmctld");
  Wait(1);
  EXPECT_THAT(std::string(Turn().message()), HasSubstr("no slurmctld"));
  EXPECT_THAT(Requests(), IsEmpty());
  engine_.away = absl::OkStatus();
  ASSERT_TRUE(Turn().ok());
  EXPECT_THAT(engine_.ensured, SizeIs(1));
}

TEST_F(ProvisionerTest, APoolWhoseNodesDoNotComeUpIsAskedLessAndLessOften) {
  Wait(1);
  std::vector<absl::Duration> asked;
  for (int second = 0; second < 400; ++second) {
    const size_t before = engine_.ensured.size();
    ASSERT_TRUE(Turn(absl::Seconds(1)).ok());
    if (engine_.ensured.size() > before) asked.push_back(clock_.passed);
    for (Allocation& one : engine_.allocations) one.state = State::kOver;  // its script failed
  }
  ASSERT_GE(asked.size(), 5u);
  EXPECT_LE(asked.size(), 12u);
  EXPECT_GT(asked[4] - asked[3], asked[1] - asked[0]);
  EXPECT_TRUE(Requests()[0].failed);
}

TEST_F(ProvisionerTest, ALimitThatRefusesAllIsAskedForLess) {
  engine_.most = 1;
  Wait(4);
  for (int i = 0; i < 20 && engine_.ensured.size() < 4; ++i) {
    (void)Turn(absl::Minutes(1));
  }
  EXPECT_THAT(engine_.ensured, SizeIs(4));
  EXPECT_THAT(Requests(), SizeIs(4)) << "under the names that they had";
}

TEST_F(ProvisionerTest, LostRanksAreGoneWithAnAllocationWhoseEndIsProven) {
  Wait(1);
  ASSERT_TRUE(Turn().ok());
  Register(engine_.ensured[0]);
  Wait(0);
  view_.nodes[0].holds = true;
  view_.nodes[0].away = true;
  view_.nodes[0].takes_work = false;
  view_.nodes[0].lost_jobs = {"uid"};
  engine_.allocations[0].state = State::kOver;
  engine_.allocations[0].proven_gone = true;
  bool woken = false;
  const int64_t subscription = stores_.wakeups().Subscribe(
      [&](const std::string& topic) { woken = woken || topic == "queue"; });
  ASSERT_TRUE(Turn().ok());
  stores_.wakeups().Unsubscribe(subscription);
  EXPECT_EQ(Requests()[0].state, NodeRequestState::kEnded);
  EXPECT_FALSE(woken) << "the store knows of no lost rank there";
}

TEST_F(ProvisionerTest, AnOldLeaderAsksForNothingAndReleasesNothing) {
  ASSERT_TRUE(Turn().ok());
  ASSERT_TRUE(stores_.scheduler().StandDown("one").ok());
  ASSERT_TRUE(stores_.scheduler().Lead("two", absl::Seconds(4), 0).ok());
  Wait(1);
  // What a newer leader asked for after the old one had read what there is.
  engine_.allocations = {{.node = "a-9-1", .id = "9"}};
  EXPECT_EQ(Turn().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(engine_.ensured, IsEmpty());
  EXPECT_THAT(engine_.released, IsEmpty());
}

TEST_F(ProvisionerTest, ALoopTakesOneOfferAtATime) {
  EXPECT_TRUE(provisioner_->WantsCapacity());
  provisioner_->Offer(view_);
  EXPECT_FALSE(provisioner_->WantsCapacity());
  provisioner_->Start();
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!provisioner_->WantsCapacity() && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(provisioner_->WantsCapacity());
  provisioner_->Stop();
  EXPECT_FALSE(provisioner_->WantsCapacity());
}

}  // namespace
}  // namespace trainyard
