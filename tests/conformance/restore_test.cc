// A database that was restored from a backup: postgres::Restore.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/audit_chain.h"
#include "storage/postgres/postgres.h"
#include "storage/records/reason_codes.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const AgentIdentity kRestoredAgent("n1", "uid", "boot:1:2:machine");

class KnownDatabase : public Backend {
 public:
  explicit KnownDatabase(const std::string& database)
      : database_(database), stores_(OpenOrDie(SharedPostgres().Conninfo(database))) {}
  ~KnownDatabase() override {
    stores_ = nullptr;
    SharedPostgres().DropDatabase(database_).IgnoreError();
  }
  Stores& stores() override { return *stores_; }
  void Pass(absl::Duration) override {}

 private:
  const std::string database_;
  std::unique_ptr<Stores> stores_;
};

class Restores : public StoreSuite {
 protected:
  void SetUp() override {
    database_ = NewDatabase();
    backend_ = std::make_unique<KnownDatabase>(database_);
    order_.folder_of = [](const JobRecord& job) { return "file:///root/" + job.job_id; };
    order_.look =
        [this](const std::string& folder) -> absl::StatusOr<std::vector<CheckpointRecord>> {
      return there_[folder];
    };
    order_.leader_is_gone = absl::ZeroDuration();
  }

  absl::StatusOr<RestoreReport> Restore() {
    return postgres::Restore(SharedPostgres().Conninfo(database_), order_);
  }
  void IsThere(const JobRecord& job, int64_t step, const std::string& manifest) {
    const std::string folder = order_.folder_of(job);
    there_[folder].push_back({.step = step,
                              .uri = absl::StrCat(folder, "/step-", step),
                              .bytes = 1,
                              .manifest_sha256 = manifest,
                              .weights_sha256 = "w"});
  }
  // A job that runs, and has reported the checkpoint of `step`.
  JobRecord RunTo(const std::string& job_id, const std::string& node, int64_t step) {
    Submit(job_id);
    const JobRecord job = Run(job_id, {node});
    EventWriter& events = Writer(job);
    for (int64_t at = 1; at <= step; ++at) events.Train(at);
    events.Add(
        CheckpointWritten{.checkpoint = {.step = step,
                                         .uri = absl::StrCat(order_.folder_of(job), "/step-", step),
                                         .manifest_sha256 = "m"}});
    EXPECT_FALSE(Append(job, 0, node, events).fenced);
    return Get(job_id);
  }
  std::vector<int64_t> StepsOf(const JobRecord& job) {
    std::vector<int64_t> steps;
    const auto checkpoints = jobs().ListCheckpoints(job.uid);
    EXPECT_OK(checkpoints.status());
    for (const CheckpointRecord& one : *checkpoints) steps.push_back(one.step);
    return steps;
  }

  // The one rank of a job that trains under this agent.
  RankRecord RunUnder(const AgentIdentity& agent) {
    RegisterAs(agent);
    const JobRecord job = Submit("job");
    EXPECT_EQ(Place(job, {agent.node}), 1);
    const auto rank = fleet().FindRank(job.uid, 0, 0);
    EXPECT_OK(rank.status());
    EXPECT_OK(fleet()
                  .AppendEvents({agent, rank->id, EventWriter().Restored(0).Train(1).Take(),
                                 rank->claim.token})
                  .status());
    return *rank;
  }
  RankState StateOf(const RankRecord& rank) {
    return fleet().FindRank(rank.id.job_uid, rank.id.attempt, rank.id.rank)->state;
  }

  std::atomic<bool> done_ = false;
  std::string database_;
  RestoreOrder order_;
  std::map<std::string, std::vector<CheckpointRecord>> there_;
};

TEST_P(Restores, WhatRanIsFencedAndGoesOnFromWhatExists) {
  Register("n1");
  Register("n2");
  const JobRecord runs = RunTo("runs", "n1", 3), waits = Submit("waits");
  IsThere(runs, 5, "newer");
  const auto report = Restore();
  ASSERT_OK(report.status());
  EXPECT_GT(report->epoch, 1);
  EXPECT_EQ(report->jobs, 2);
  EXPECT_EQ(report->fenced_jobs, 1);
  EXPECT_EQ(report->missing_checkpoints, 1);
  EXPECT_EQ(report->found_checkpoints, 1);
  EXPECT_THAT(report->job_folders, ElementsAre("file:///root/runs", "file:///root/waits"));

  const JobRecord job = Get("runs");
  EXPECT_EQ(job.state, JobState::kQueued);
  EXPECT_EQ(job.reason.code, reason::kRestored);
  EXPECT_EQ(job.losses, 0);
  EXPECT_EQ(job.restarts, 0);
  EXPECT_FALSE(job.failure.has_value());
  EXPECT_EQ(job.newest_checkpoint_uri, "file:///root/runs/step-5");
  EXPECT_THAT(StepsOf(runs), ElementsAre(5));
  EXPECT_EQ(Get("waits").version, waits.version);
  ExpectGaplessFeed(runs.uid);

  // Neither do its ranks report any more, nor does the node's session go on; the slot is taken
  // until the agent has said that nothing runs there.
  EXPECT_TRUE(Append(runs, 0, "n1", Writer(runs).Train(4)).fenced);
  EXPECT_EQ(RenewLease(fleet(), "n1", "i1", absl::Seconds(10), {}).code(),
            absl::StatusCode::kAborted);
}

TEST_P(Restores, RanksOfBeforeDoNotRejoinAndTheirAgentFreesTheirSlots) {
  const RankRecord rank = RunUnder(kRestoredAgent);
  ASSERT_OK(Restore().status());
  EXPECT_EQ(StateOf(rank), RankState::kLost);
  EXPECT_TRUE(RegisterAs(kRestoredAgent, 4, {{rank.id, rank.claim.token}}).empty());
  const auto desired = fleet().ReadDesired(kRestoredAgent);
  ASSERT_OK(desired.status());
  EXPECT_TRUE(desired->empty());
  EXPECT_TRUE(*fleet().ReportAbsent(kRestoredAgent, {rank.id}));
  EXPECT_EQ(StateOf(rank), RankState::kGone);
}

TEST_P(Restores, AJobThatHadNotBegunGoesOnFromWhatItDidSince) {
  Register("n1");
  const JobRecord job = Submit("job");
  IsThere(job, 5, "m");
  ASSERT_OK(Restore().status());
  Register("n1");
  ASSERT_EQ(Place(Get("job"), {"n1"}), 1);
  const auto attempt = fleet().FindAttempt(job.uid, 0);
  ASSERT_OK(attempt.status());
  EXPECT_EQ(attempt->restore_step, 5);
  EXPECT_EQ(attempt->restore_manifest_sha256, "m");
}

TEST_P(Restores, ALossOfBeforeDoesNotRejoinEither) {
  const RankRecord rank = RunUnder(kRestoredAgent);
  Decisions lost;
  lost.lost_nodes.push_back(Stands("n1"));
  ASSERT_OK(scheduler().Apply(Lead(), lost).status());
  ASSERT_EQ(StateOf(rank), RankState::kLost);
  ASSERT_OK(scheduler().StandDown("leader"));
  ASSERT_OK(Restore().status());
  EXPECT_TRUE(RegisterAs(kRestoredAgent, 4, {{rank.id, rank.claim.token}}).empty());
}

TEST_P(Restores, TheSameBackupRestoredTwiceHasTwoEpochs) {
  const auto first = Restore();
  ASSERT_OK(first.status());
  QueryOrDie(database_, "UPDATE yard SET epoch = 1");  // as in the backup
  const auto second = Restore();
  ASSERT_OK(second.status());
  EXPECT_GT(second->epoch, first->epoch);
}

TEST_P(Restores, AListOfRevocationsThatIsTooYoungIsNotEnough) {
  AuditEntry entry{.chain = "server",
                   .sequence = 1,
                   .time = absl::FromUnixSeconds(1000),
                   .principal = "user:x",
                   .method = "SubmitJob"};
  entry.digest = AuditDigest("", entry);
  ASSERT_OK(backend_->stores().audit().AppendAudit({entry}));
  order_.revoked_since = absl::FromUnixSeconds(1001);
  const absl::Status refused = Restore().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("say --revoke-all as well"));
  order_.revoked_since = absl::FromUnixSeconds(999);
  EXPECT_OK(Restore().status());
  const auto told = backend_->stores().audit().ListAudit({.principal = "server:restore"}, 10);
  ASSERT_OK(told.status());
  ASSERT_EQ(told->size(), 1);
  EXPECT_EQ((*told)[0].digest, AuditDigest("", (*told)[0]));
}

TEST_P(Restores, NobodyJoinsWithATokenOfBefore) {
  const JoinToken token{.id = std::string(16, 'a'), .sha256 = std::string(64, 'a'), .creator = "a"};
  ASSERT_OK(backend_->stores().node_keys().AddJoinToken(token, absl::Hours(1)).status());
  EXPECT_EQ(Restore()->ended_join_tokens, 1);
  EXPECT_LT((*backend_->stores().node_keys().ListJoinTokens())[0].revoke_time,
            absl::InfiniteFuture());
}

TEST_P(Restores, ALeaderOfBeforeChangesNothing) {
  Register("n1");
  const int64_t epoch = Lead("before");
  ASSERT_OK(Restore().status());
  EXPECT_GT(Lead("after"), epoch + 1000);
  EXPECT_EQ(backend_->stores().provision().AddNodeRequests(epoch, {}).code(),
            absl::StatusCode::kAborted);
}

TEST_P(Restores, ServersThatRememberWhatWasAreTold) {
  ASSERT_OK(backend_->stores().Probe());
  ASSERT_OK(Restore().status());
  const absl::Status told = backend_->stores().Probe();
  EXPECT_EQ(told.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(told.message()), HasSubstr(", and was 1)"));
}

TEST_P(Restores, NothingIsChangedWhileAServerLeads) {
  Lead("busy");
  order_.leader_is_gone = absl::Seconds(20);
  std::thread renews([this] {
    while (QueryOrDie(database_, "SELECT epoch FROM yard") == "1" && !done_) {
      QueryOrDie(database_, "UPDATE leader SET beat = beat + 1");
    }
  });
  const absl::Status refused = Restore().status();
  done_ = true;
  renews.join();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a server works on this database (busy"));
  EXPECT_EQ(QueryOrDie(database_, "SELECT epoch FROM yard"), "1");
}

TEST_P(Restores, AFolderThatIsNotMountedChangesNothing) {
  Register("n1");
  const JobRecord job = RunTo("job", "n1", 3);
  const absl::Status refused = Restore().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Get("job").state, JobState::kRunning);
  EXPECT_THAT(StepsOf(job), ElementsAre(3));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("of projects/default/jobs/job"));
  order_.forget_checkpoints = {"projects/default/jobs/another"};
  EXPECT_EQ(Restore().status().code(), absl::StatusCode::kFailedPrecondition);
  order_.forget_checkpoints = {"projects/default/jobs/job"};
  ASSERT_OK(Restore().status());
  EXPECT_EQ(Get("job").newest_checkpoint_uri, "");
  EXPECT_THAT(StepsOf(job), ElementsAre());
}

TEST_P(Restores, CheckpointsOfAJobThatEndedAreLookedAtToo) {
  Register("n1");
  const JobRecord job = RunTo("job", "n1", 3);
  ASSERT_FALSE(Append(job, 0, "n1", Writer(job).Fails(false).Exited(1)).fenced);
  ASSERT_EQ(Get("job").state, JobState::kFailed);
  IsThere(job, 2, "older");
  ASSERT_OK(Restore().status());
  EXPECT_THAT(StepsOf(job), ElementsAre(2));
  EXPECT_EQ(Get("job").newest_checkpoint_uri, "file:///root/job/step-2");
}

TEST_P(Restores, ACopyHasNoNodesAndAnotherName) {
  Register("n1");
  const JobRecord job = RunTo("job", "n1", 3);
  IsThere(job, 3, "m");
  const std::string before = QueryOrDie(database_, "SELECT id FROM yard");
  order_.as = RestoredAs::kCopy;
  ASSERT_OK(Restore().status());
  EXPECT_NE(QueryOrDie(database_, "SELECT id FROM yard"), before);
  EXPECT_EQ(Get("job").state, JobState::kQueued);
  EXPECT_EQ(Get("job").reason.code, reason::kRestored);
  EXPECT_EQ(fleet().FindRank(job.uid, 0, 0)->state, RankState::kGone);
  EXPECT_THAT(StepsOf(job), ElementsAre(3));
}

TEST_P(Restores, WhatWasRevokedStaysRevoked) {
  TokenStore& tokens = backend_->stores().tokens();
  const std::string bad(64, 'a'), good(64, 'b'), of_file(64, 'c');
  for (const std::string& sha : {bad, good}) {
    TokenRecord token{.id = TokenIdOf(sha), .principal = {"user:x", "viewer", "p"}};
    ASSERT_OK(tokens.CreateToken(sha, token, absl::Hours(1)).status());
  }
  ASSERT_OK(tokens.AddToken(of_file, {"admin", "admin", ""}));
  order_.revoked = {{CredentialKind::kToken, TokenIdOf(bad)},
                    {CredentialKind::kToken, TokenIdOf(of_file)},
                    {CredentialKind::kToken, "made after the backup"},
                    {CredentialKind::kNodeKey, "likewise"}};
  EXPECT_EQ(Restore()->revoked, 2);
  EXPECT_EQ(tokens.FindToken(bad).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(tokens.FindToken(of_file).status().code(), absl::StatusCode::kNotFound);
  ASSERT_OK(tokens.FindToken(good).status());
  EXPECT_EQ(Restore()->revoked, 0) << "again";
  order_.revoke_all = true;
  EXPECT_EQ(Restore()->revoked, 1);
  EXPECT_EQ(tokens.FindToken(good).status().code(), absl::StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(OnPostgres, Restores, ::testing::Values("postgres"));

}  // namespace
}  // namespace trainyard::testing
