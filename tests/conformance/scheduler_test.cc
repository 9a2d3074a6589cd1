// Leaders, placements, slots, nodes and their loss, tokens.

#include "absl/strings/str_cat.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

const Reason kPreempt{reason::kPreempted, "for another"};

TEST_P(StoreSuite, LeadershipChangesOnlyWhereTheLeaseStoodStill) {
  const auto first = scheduler().Lead("a", absl::Seconds(10), std::nullopt);
  ASSERT_OK(first.status());
  EXPECT_EQ(scheduler().Lead("a", absl::Seconds(10), std::nullopt)->epoch, first->epoch);
  const absl::Status refused = scheduler().Lead("b", absl::Seconds(10), std::nullopt).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("a leads"), absl::string_view::npos);
  const auto stood = scheduler().ReadLeader();
  ASSERT_OK(stood.status());
  EXPECT_EQ(stood->holder, "a");
  EXPECT_EQ(stood->epoch, first->epoch);
  ASSERT_OK(scheduler().Lead("a", absl::Seconds(10), std::nullopt).status());  // it was only slow
  EXPECT_EQ(scheduler().Lead("b", absl::Seconds(10), stood->beat).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto second = scheduler().Lead("b", absl::Seconds(10), scheduler().ReadLeader()->beat);
  ASSERT_OK(second.status());
  EXPECT_GT(second->epoch, first->epoch);
  EXPECT_EQ(scheduler().Apply(first->epoch, {}).status().code(), absl::StatusCode::kAborted);
  EXPECT_OK(scheduler().Apply(second->epoch, {}).status());
}

TEST_P(StoreSuite, ReplicaThatStartedAgainFollowsItselfAtOnceWithALargerEpoch) {
  const int64_t before = Lead("host:7070/first");
  EXPECT_EQ(Lead("host:7070/first"), before);
  const int64_t after = Lead("host:7070/second");
  EXPECT_GT(after, before);
  EXPECT_EQ(scheduler().Apply(before, {}).status().code(), absl::StatusCode::kAborted);
  EXPECT_OK(scheduler().Apply(after, {}).status());
  EXPECT_EQ(scheduler().Lead("host:70/x", absl::Seconds(10), std::nullopt).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_OK(scheduler().StandDown("host:7070/first"));  // late: it leads no more
  EXPECT_OK(scheduler().Apply(after, {}).status());
}

TEST_P(StoreSuite, LeaderThatStandsDownIsFollowedAtOnce) {
  const int64_t epoch = Lead("a");
  EXPECT_OK(scheduler().StandDown("b"));  // not the leader: nothing happens
  EXPECT_OK(scheduler().Apply(epoch, {}).status());
  EXPECT_OK(scheduler().StandDown("a"));
  EXPECT_GT(Lead("b"), epoch);
}

TEST_P(StoreSuite, StaleLeaderPlacesNothing) {
  Register("n1");
  const JobRecord job = Submit("a");
  const int64_t old_epoch = Lead("a");
  ASSERT_OK(scheduler().Lead("b", absl::Seconds(10), scheduler().ReadLeader()->beat).status());
  const Placement placement{.job_uid = job.uid, .job_version = job.version, .ranks = {{"n1", {0}}}};
  EXPECT_EQ(scheduler().Apply(old_epoch, {.placements = {placement}}).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(Get("a").state, JobState::kQueued);
}

TEST_P(StoreSuite, SnapshotShowsQueuedAndPlacedJobsAndNodes) {
  Register("n1", 2);
  Submit("queued");
  Submit("running");
  Submit("done");
  ASSERT_OK(jobs().Cancel({"default", "done"}, 0, kUser).status());
  Submit("paused");
  ASSERT_OK(jobs().Pause({"default", "paused"}, 0, kUser, absl::Seconds(1)).status());
  const JobRecord running = Run("running", {"n1"});
  const auto snapshot = scheduler().ReadSnapshot();
  ASSERT_OK(snapshot.status());
  const std::vector<const JobRecord*> jobs = JobsOf(*snapshot);
  ASSERT_EQ(jobs.size(), 2u);
  for (const JobRecord* job : jobs) EXPECT_TRUE(job->spec.empty());
  ASSERT_EQ(snapshot->attempts.size(), 1u);
  EXPECT_EQ(snapshot->attempts[0].job_uid, running.uid);
  EXPECT_EQ(snapshot->attempts[0].ranks.at(0).slots, std::vector<int>{0});
  EXPECT_EQ(snapshot->attempts[0].ranks.at(0).state, RankState::kRunning);
  ASSERT_EQ(snapshot->nodes.size(), 1u);
  EXPECT_EQ(snapshot->nodes[0].slots.size(), 2u);
  EXPECT_EQ(snapshot->nodes[0].slots[1].model, "cpu x2");
  EXPECT_EQ(snapshot->nodes[0].labels.at("zone"), "a");
  EXPECT_EQ(snapshot->nodes[0].slots[0].arithmetic,
            (Arithmetic{{"device", "CPU"}, {"loops", "avx2"}}));
  EXPECT_GT(snapshot->nodes[0].lease_end, snapshot->now);
}

TEST_P(StoreSuite, PlacementMakesAnAttemptAndTellsTheFeed) {
  Register("n1");
  const JobRecord before = Submit("a");
  ASSERT_EQ(Place(before, {"n1"}), 1);
  const JobRecord job = Get("a");
  EXPECT_EQ(job.state, JobState::kStarting);
  EXPECT_EQ(job.attempt, 1);
  EXPECT_GT(job.version, before.version);
  EXPECT_EQ(job.reason.code, reason::kPlaced);
  const auto desired = fleet().ReadDesired("n1");
  ASSERT_OK(desired.status());
  ASSERT_EQ(desired->size(), 1u);
  EXPECT_EQ(desired->at(0).rank.id, (RankId{job.uid, 1, 0}));
  EXPECT_EQ(desired->at(0).job.spec, before.spec);
  EXPECT_FALSE(desired->at(0).suspend);
  EXPECT_TRUE(desired->at(0).attempt.restore_uri.empty());
  EXPECT_EQ(ListRanks(fleet(), "n1")->size(), 1u);
  EXPECT_TRUE(ListRanks(fleet(), "n2")->empty());
}

TEST_P(StoreSuite, SlotIsHeldByOneRankUntilThatIsGone) {
  Register("n1");
  const JobRecord a = Submit("a");
  Submit("b");
  ASSERT_EQ(Place(a, {"n1"}), 1);
  EXPECT_EQ(Place(Get("b"), {"n1"}), 0);
  EXPECT_EQ(Get("b").state, JobState::kQueued);
  EXPECT_EQ(jobs().Cancel({"default", "a"}, 0, kUser)->state, JobState::kCancelling);
  EXPECT_EQ(Place(Get("b"), {"n1"}), 0);  // its process is not proven gone
  const JobRecord cancelling = Get("a");
  Append(cancelling, 0, "n1", Writer(cancelling).Exited(0, 9));
  EXPECT_EQ(Place(Get("b"), {"n1"}), 1);
}

TEST_P(StoreSuite, TwoPlacementsOfOneDecisionCannotShareASlot) {
  Register("n1");
  const JobRecord a = Submit("a");
  const JobRecord b = Submit("b");
  Decisions decisions;
  decisions.placements = {
      {.job_uid = a.uid, .job_version = a.version, .ranks = {{"n1", {0}}}},
      {.job_uid = b.uid, .job_version = b.version, .ranks = {{"n1", {0}}}},
  };
  EXPECT_EQ(*scheduler().Apply(Lead(), decisions), 1);
  EXPECT_EQ(Get("a").state, JobState::kStarting);
  EXPECT_EQ(Get("b").state, JobState::kQueued);
}

TEST_P(StoreSuite, PlacementThatDoesNotHoldAnyMoreIsLeftOut) {
  Register("n1", 2);
  const JobRecord job = Submit("a");
  JobRecord stale = job;
  stale.version += 1;
  EXPECT_EQ(Place(stale, {"n1"}), 0);
  EXPECT_EQ(Place(job, {"nowhere"}), 0);
  EXPECT_EQ(Place(job, {"n1"}, {2}), 0);  // no such slot
  ASSERT_OK(fleet().SetDraining("n1", true).status());
  EXPECT_EQ(Place(job, {"n1"}), 0);
  ASSERT_OK(fleet().SetDraining("n1", false).status());
  ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status());
  EXPECT_EQ(Place(job, {"n1"}), 0);  // its lease ended
  Register("n1", 2, "i2");
  EXPECT_EQ(Place(job, {"n1"}), 1);
  EXPECT_EQ(Place(job, {"n1"}, {1}), 0);  // no longer queued
}

TEST_P(StoreSuite, PlacementsWithoutSenseAreInvalid) {
  const JobRecord job = Submit("a");
  const int64_t epoch = Lead();
  for (const std::vector<Placement::Rank>& ranks :
       {std::vector<Placement::Rank>{}, {{"n1", {}}}, {{"n1", {0}}, {"n1", {0}}}}) {
    const Placement placement{.job_uid = job.uid, .job_version = 1, .ranks = ranks};
    EXPECT_EQ(scheduler().Apply(epoch, {.placements = {placement}}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(StoreSuite, GangIsPlacedWholeOrNotAtAll) {
  Register("n1", 1);
  Register("n2", 1);
  Submit("other");
  Run("other", {"n2"});
  const JobRecord gang = Submit("gang", 2);
  EXPECT_EQ(Place(gang, {"n1", "n2"}), 0);
  EXPECT_TRUE(ListRanks(fleet(), "n1")->empty());
  const JobRecord other = Get("other");
  Append(other, 0, "n2", Writer(other).Finished(1).Exited());
  EXPECT_EQ(Place(gang, {"n1", "n2"}), 1);
  EXPECT_EQ(fleet().ListAttempts(gang.uid)->at(0).world_size, 2);
}

TEST_P(StoreSuite, WaitingReasonChangesNeitherVersionNorFeed) {
  const JobRecord job = Submit("a");
  const Reason waiting{reason::kWaitingForSlots, "1 of 1 slots is taken"};
  Decisions decisions;
  decisions.reasons = {{job.uid, job.version, waiting}};
  EXPECT_EQ(*scheduler().Apply(Lead(), decisions), 0);
  EXPECT_EQ(Get("a").reason, waiting);
  EXPECT_EQ(Get("a").version, job.version);
  EXPECT_EQ(jobs().ReadFeed(job.uid, 0, 10)->size(), 1u);
  decisions.reasons = {{job.uid, job.version + 1, kUser}};
  EXPECT_EQ(*scheduler().Apply(Lead(), decisions), 0);
  EXPECT_EQ(Get("a").reason, waiting);
}

TEST_P(StoreSuite, PreemptedJobGoesBackToTheQueueForFree) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  Decisions decisions;
  decisions.suspensions = {
      {job.uid, job.version + 1, SuspendCause::kPreempted, kPreempt, absl::Seconds(9)}};
  EXPECT_EQ(*scheduler().Apply(Lead(), decisions), 0);
  decisions.suspensions[0].job_version = job.version;
  EXPECT_EQ(*scheduler().Apply(Lead(), decisions), 1);
  const JobRecord suspending = Get("a");
  EXPECT_EQ(suspending.state, JobState::kSuspending);
  EXPECT_EQ(suspending.suspend_cause, SuspendCause::kPreempted);
  EXPECT_TRUE(fleet().ReadDesired("n1")->at(0).suspend);
  Append(job, 0, "n1", Writer(job).Checkpoint(1).Suspended(1).Exited());
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").reason, kPreempt);
  EXPECT_EQ(Get("a").restarts, 0);
}

TEST_P(StoreSuite, FailureWhileBeingPreemptedCounts) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  Decisions decisions;
  decisions.suspensions = {
      {job.uid, job.version, SuspendCause::kDrained, kPreempt, absl::Seconds(9)}};
  ASSERT_EQ(*scheduler().Apply(Lead(), decisions), 1);
  Append(job, 0, "n1", Writer(job).Fails(true, "STORAGE").Exited(74));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").restarts, 1);
}

TEST_P(StoreSuite, LostNodeLosesItsRanksAndFencesTheirLateEvents) {
  Register("n1");
  Register("n2");
  Submit("a", 2);
  const JobRecord job = Run("a", {"n1", "n2"});
  const std::vector<LostNode> lost = {Stands("n1"), Stands("n2")};
  ASSERT_OK(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {}));
  EXPECT_EQ(*scheduler().Apply(Lead(), {.lost_nodes = {lost[0]}}), 0);  // renewed meanwhile
  EXPECT_EQ(ListRanks(fleet(), "n1")->size(), 1u);
  ASSERT_OK(RenewLease(fleet(), "n2", "i1", absl::Seconds(10), {}));
  EXPECT_EQ(*scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1"), lost[1]}}), 1);
  EXPECT_FALSE(fleet().ListNodes()->at(0).reachable);
  EXPECT_TRUE(fleet().ListNodes()->at(1).reachable);  // renewed meanwhile
  EXPECT_EQ(fleet().FindRank(job.uid, 0, 0)->outcome, RankOutcome::kLost);
  EXPECT_TRUE(Append(job, 0, "n1", Writer(job).Train(1)).fenced);
  EXPECT_EQ(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {}).code(),
            absl::StatusCode::kAborted);
  EXPECT_TRUE(fleet().ReadDesired("n2")->empty());
  // The peer fails because of the loss: nobody's fault.
  Append(job, 1, "n2", Writer(job, 1).Fails(true, "LOST").Exited(70));
  EXPECT_EQ(Get("a").state, JobState::kQueued);
  EXPECT_EQ(Get("a").reason.code, reason::kNodeLost);
  EXPECT_EQ(Get("a").restarts, 0);
  Register("n1", 4, "i2");
  EXPECT_TRUE(fleet().ListNodes()->at(0).reachable);
  EXPECT_TRUE(fleet().ReadDesired("n1")->empty());
  Run("a", {"n1", "n2"});
}

TEST_P(StoreSuite, LossOfItsNodeEndsWhatWasAskedForAnyway) {
  Register("n1");
  for (const char* id : {"cancelled", "paused", "running"}) Submit(id);
  const JobRecord cancelled = Run("cancelled", {"n1"});
  ASSERT_EQ(Place(Get("paused"), {"n1"}, {1}), 1);
  ASSERT_EQ(Place(Get("running"), {"n1"}, {2}), 1);
  ASSERT_OK(jobs().Cancel({"default", "cancelled"}, 0, kUser).status());
  ASSERT_OK(jobs().Pause({"default", "paused"}, 0, kUser, absl::Seconds(99)).status());
  backend_->Pass(absl::Seconds(11));
  EXPECT_EQ(*scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}), 3);
  EXPECT_TRUE(ListRanks(fleet(), "n1")->empty());
  EXPECT_EQ(Get("cancelled").state, JobState::kCancelled);
  EXPECT_EQ(Get("paused").state, JobState::kSuspended);
  EXPECT_EQ(Get("running").state, JobState::kQueued);
  EXPECT_EQ(*scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}), 0);
}

TEST_P(StoreSuite, NewSessionOfANodeEndsTheOldOneAndKeepsDraining) {
  Register("n1");
  ASSERT_OK(fleet().SetDraining("n1", true).status());
  EXPECT_OK(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {}));
  Register("n1", 4, "i2");
  EXPECT_EQ(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {}).code(),
            absl::StatusCode::kAborted);
  EXPECT_OK(RenewLease(fleet(), "n1", "i2", absl::Seconds(10), {}));
  EXPECT_TRUE(fleet().ListNodes()->at(0).draining);
  EXPECT_FALSE(fleet().SetDraining("n1", false)->draining);
  EXPECT_EQ(fleet().SetDraining("n9", true).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(RenewLease(fleet(), "n9", "i1", absl::Seconds(10), {}).code(),
            absl::StatusCode::kAborted);
}

TEST_P(StoreSuite, ANodeThatLeavesTakesNoWorkUntilItRegistersAgain) {
  Register("n1");
  const auto leave_time = [this] { return fleet().ListNodes()->at(0).leave_time; };
  EXPECT_EQ(leave_time(), absl::InfiniteFuture());
  AgentIdentity session("n1", "", "", "i1");
  ASSERT_OK(fleet().SetLeaving(session, absl::Seconds(30)));
  const absl::Time now = scheduler().ReadSnapshot()->now;
  EXPECT_GT(leave_time(), now);
  EXPECT_LE(leave_time(), now + absl::Seconds(30));
  EXPECT_EQ(Place(Submit("a"), {"n1"}), 0);
  session.session = "i0";
  EXPECT_TRUE(absl::IsAborted(fleet().SetLeaving(session, absl::Seconds(30))));
  session.node = "n9";
  EXPECT_TRUE(absl::IsAborted(fleet().SetLeaving(session, absl::Seconds(30))));
  Register("n1", 4, "i2");
  EXPECT_EQ(leave_time(), absl::InfiniteFuture());
  EXPECT_EQ(Place(Get("a"), {"n1"}), 1);
}

TEST_P(StoreSuite, LeasesOfManyNodesAreRenewedTogetherAndAnsweredEachForItself) {
  Register("n1");
  Register("n2");
  Register("n3");
  Register("n4", 4, "i2");
  ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n3")}}).status());
  const auto beats = [this] {
    std::vector<int64_t> all;
    const std::vector<NodeRecord> nodes = *fleet().ListNodes();
    for (const NodeRecord& node : nodes) all.push_back(node.beat);
    return all;
  };
  const std::vector<int64_t> before = beats();
  EXPECT_TRUE(fleet().RenewLeases({}).empty());
  const absl::Duration lease = absl::Seconds(10);
  const std::vector<absl::Status> answers = fleet().RenewLeases(
      {{"n9", "i1", lease, {}},  // never registered
       {"n2", "i1", lease, {.usage = {{.index = 3}}}},
       {"n3", "i1", lease, {}},  // lost
       {"n1", "i1", lease, {.usage = {}, .disk_free_bytes = 4}},
       {"n4", "i1", lease, {.usage = {}, .disk_free_bytes = 7}},  // of an older session
       {"n1", "i1", lease, {.usage = {{.index = 1}}, .disk_free_bytes = 5}}});
  std::vector<absl::StatusCode> codes;
  for (const absl::Status& answer : answers) codes.push_back(answer.code());
  const absl::StatusCode over = absl::StatusCode::kAborted, ok = absl::StatusCode::kOk;
  EXPECT_EQ(codes, (std::vector<absl::StatusCode>{over, ok, over, ok, over, ok}));
  EXPECT_NE(answers[4].message().find("n4 under incarnation i1 is over"), std::string::npos)
      << answers[4];
  const auto nodes = fleet().ListNodes();
  ASSERT_OK(nodes.status());
  EXPECT_EQ(nodes->at(0).report.disk_free_bytes, 5) << "the later report";
  EXPECT_EQ(nodes->at(0).report.usage, (std::vector<SlotUsage>{{.index = 1}}));
  EXPECT_EQ(nodes->at(1).report.usage, (std::vector<SlotUsage>{{.index = 3}}));
  EXPECT_FALSE(nodes->at(1).report.disk_free_bytes.has_value());
  EXPECT_FALSE(nodes->at(3).report.disk_free_bytes.has_value());
  const std::vector<int64_t> after = beats();
  EXPECT_GT(after[0], before[0]);
  EXPECT_GT(after[1], before[1]);
  EXPECT_EQ(after[2], before[2]);
  EXPECT_EQ(after[3], before[3]);
}

TEST_P(StoreSuite, ANameIsGivenToAnotherAgentOnlyOnceItsLeaseIsOver) {
  NodeRecord holder{.name = "n1", .uid = "u1", .instance = "boot:dir", .incarnation = "i1"};
  holder.address = "first.example";
  const auto enter = [&](const NodeRecord& node) {
    return fleet().RegisterNode(node, absl::Seconds(10)).status();
  };
  ASSERT_OK(enter(holder));
  NodeRecord restarted = holder;
  restarted.incarnation = "i2";
  EXPECT_OK(enter(restarted)) << "the same agent again";
  NodeRecord copied = holder;
  copied.instance = "boot:copy";
  const std::string refused(enter(copied).message());
  EXPECT_NE(refused.find("first.example"), std::string::npos) << refused;
  EXPECT_NE(refused.find("copy of the same state directory"), std::string::npos) << refused;
  NodeRecord other = holder;
  other.uid = "u2";
  EXPECT_EQ(enter(other).code(), absl::StatusCode::kFailedPrecondition);
  NodeRecord older = holder;
  older.uid = older.instance = "";
  EXPECT_EQ(enter(older).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_OK(RenewLease(fleet(), "n1", "i2", absl::Seconds(10), {})) << "nobody took it";
  ASSERT_OK(scheduler().Apply(Lead(), {.lost_nodes = {Stands("n1")}}).status());
  EXPECT_OK(enter(other));
  EXPECT_EQ(fleet().ListNodes()->at(0).uid, "u2");
  EXPECT_EQ(enter(holder).code(), absl::StatusCode::kFailedPrecondition);
  // An agent that tells nothing of itself is as before: whoever comes, takes over.
  ASSERT_OK(enter({.name = "old", .incarnation = "i1"}));
  EXPECT_OK(enter({.name = "old", .incarnation = "i2"}));
  EXPECT_OK(enter({.name = "old", .uid = "u3", .instance = "b:d", .incarnation = "i3"}));
}

TEST_P(StoreSuite, ANodesUsageIsThatOfItsLastHeartbeat) {
  Register("n1");
  EXPECT_TRUE(fleet().ListNodes()->at(0).report.usage.empty());
  const SlotUsage busy{.index = 1,
                       .utilization = 0.875,
                       .memory_used_bytes = int64_t{5} << 33,
                       .temperature_celsius = 61,
                       .power_watts = 412.5,
                       .last_xid = 79};
  ASSERT_OK(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {.usage = {{.index = 0}, busy}}));
  EXPECT_EQ(fleet().ListNodes()->at(0).report.usage, (std::vector<SlotUsage>{{.index = 0}, busy}));
  EXPECT_EQ(scheduler().ReadSnapshot()->nodes.at(0).report.usage.size(), 2u);
  ASSERT_OK(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {}));
  EXPECT_TRUE(fleet().ListNodes()->at(0).report.usage.empty());
  ASSERT_OK(
      RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {.usage = {busy}, .disk_free_bytes = 5}));
  EXPECT_EQ(fleet().ListNodes()->at(0).report.disk_free_bytes, 5);
  Register("n1", 4, "i2");
  EXPECT_TRUE(fleet().ListNodes()->at(0).report.usage.empty());
}

TEST_P(StoreSuite, NodesWithoutSenseAreInvalid) {
  NodeRecord node;
  EXPECT_EQ(fleet().RegisterNode(node, absl::Seconds(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  node.name = "n1";
  node.slots = {{.index = 0}, {.index = 0}};
  EXPECT_EQ(fleet().RegisterNode(node, absl::Seconds(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreSuite, TokensOfServersAreFoundByTheirHash) {
  TokenStore& tokens = backend_->stores().tokens();
  EXPECT_EQ(tokens.FindToken("hash").status().code(), absl::StatusCode::kNotFound);
  EXPECT_OK(tokens.AddToken("hash", {"user:alice", "admin"}));
  EXPECT_OK(tokens.AddToken("hash", {"agent:n1", "agent"}));
  EXPECT_EQ(tokens.FindToken("hash")->name, "agent:n1");
  EXPECT_EQ(tokens.FindToken("hash")->role, "agent");
  EXPECT_EQ(tokens.FindToken("hash")->project, "");
}

TEST_P(StoreSuite, TheFirstAuthorityStays) {
  AuthorityStore& store = backend_->stores().authority();
  ASSERT_OK(store.FindAuthority().status());
  EXPECT_FALSE(store.FindAuthority()->has_value());
  const std::string sealed("\0\xff sealed", 9);
  ASSERT_OK(store.AddAuthority({.certificate = "first", .sealed_key = sealed}).status());
  const auto kept = store.AddAuthority({.certificate = "second", .sealed_key = "other"});
  ASSERT_OK(kept.status());
  EXPECT_EQ(kept->certificate, "first");
  ASSERT_TRUE(store.FindAuthority()->has_value());
  EXPECT_EQ((*store.FindAuthority())->sealed_key, sealed);
}

TEST_P(StoreSuite, SubscribersAreWokenBeforeWakeReturnsAndNeverAfterUnsubscribe) {
  Wakeups& wakeups = backend_->stores().wakeups();
  std::atomic<int> woken = 0;
  const int64_t id = wakeups.Subscribe([&](const std::string& topic) {
    if (topic == "job:1") ++woken;
  });
  wakeups.Wake("job:1");
  EXPECT_EQ(woken, 1);
  wakeups.Unsubscribe(id);
  wakeups.Wake("job:1");
  EXPECT_EQ(woken, 1);
  wakeups.Unsubscribe(id);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreSuite, ::testing::Values("memory", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trainyard::testing
