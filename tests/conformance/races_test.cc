// Threads that do at once what users, scheduler and agents do; and two stores that are told the
// same.

#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

// Runs `body(i)` on `n` threads at once.
template <typename Body>
void InParallel(int n, const Body& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(StoreSuite, CancelAndSuccessAtOnceEndInOneOfThem) {
  Register("n1");
  for (int round = 0; round < 20; ++round) {
    const std::string id = absl::StrCat("job", round);
    Submit(id);
    const JobRecord job = Run(id, {"n1"});
    const std::vector<RankEventRecord> events = Writer(job).Train(1).Finished(1).Exited().Take();
    InParallel(2, [&](int i) {
      if (i == 0) {
        EXPECT_OK(fleet().AppendEvents({"n1", {job.uid, 1, 0}, events}).status());
      } else {
        const auto cancelled = jobs().Cancel({"default", id}, 0, kUser);
        EXPECT_TRUE(cancelled.ok() ||
                    cancelled.status().code() == absl::StatusCode::kFailedPrecondition);
      }
    });
    EXPECT_EQ(Get(id).state, JobState::kSucceeded);  // it had finished, whoever came first
    EXPECT_TRUE(ListRanks(fleet(), "n1")->empty());
    ExpectGaplessFeed(job.uid);
  }
}

TEST_P(StoreSuite, EventsSentByManyThreadsAreStoredOnce) {
  Register("n1");
  Submit("a");
  const JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  for (int step = 1; step <= 50; ++step) writer.Train(step);
  const std::vector<RankEventRecord> events = writer.Take();
  InParallel(4, [&](int i) {
    for (size_t sent = 0; sent < events.size();) {
      const size_t size = std::min(events.size(), sent + 3 + i);
      const auto result = fleet().AppendEvents(
          {"n1", {job.uid, 1, 0}, {events.begin() + sent, events.begin() + size}});
      ASSERT_OK(result.status());
      sent = result->acked_sequence - 2;  // Started and Restored came before
    }
  });
  EXPECT_EQ(jobs().ReadMetrics(job.uid, {.include_superseded = true})->size(), 50u);
  ExpectGaplessFeed(job.uid);
}

TEST_P(StoreSuite, OneOfManyBecomesLeader) {
  std::atomic<int> leaders = 0;
  InParallel(8, [&](int i) {
    leaders +=
        scheduler().Lead(absl::StrCat("holder", i), absl::Seconds(10), std::nullopt).ok() ? 1 : 0;
  });
  EXPECT_EQ(leaders, 1);
}

TEST_P(StoreSuite, ManyAppliesAtOnceGiveASlotOnce) {
  Register("n1", 2);
  std::vector<JobRecord> queued;
  for (int i = 0; i < 8; ++i) queued.push_back(Submit(absl::StrCat("job", i)));
  const int64_t epoch = Lead();
  std::atomic<int> placed = 0;
  InParallel(8, [&](int i) {
    const Placement placement{
        .job_uid = queued[i].uid, .job_version = 1, .ranks = {{"n1", {i % 2}}}};
    const auto changed = scheduler().Apply(epoch, {.placements = {placement}});
    EXPECT_OK(changed.status());
    placed += changed.value_or(0);
  });
  EXPECT_EQ(placed, 2);
  EXPECT_EQ(ListRanks(fleet(), "n1")->size(), 2u);
}

TEST_P(StoreSuite, LossOfANodeAndItsLastEventsAtOnceLeaveNothingBehind) {
  for (int round = 0; round < 10; ++round) {
    Register("n1", 4, absl::StrCat("i", round));
    const std::string id = absl::StrCat("job", round);
    Submit(id);
    const JobRecord job = Run(id, {"n1"});
    const std::vector<RankEventRecord> events = Writer(job).Train(1).Exited(0, 9).Take();
    backend_->Pass(absl::Seconds(11));
    const int64_t epoch = Lead();
    const LostNode lost = Stands("n1");
    InParallel(2, [&](int i) {
      if (i == 0) {
        EXPECT_OK(fleet().AppendEvents({"n1", {job.uid, 1, 0}, events}).status());
      } else {
        EXPECT_OK(scheduler().Apply(epoch, {.lost_nodes = {lost}}).status());
      }
    });
    EXPECT_EQ(Get(id).state, JobState::kQueued);
    EXPECT_TRUE(ListRanks(fleet(), "n1")->empty());
    ExpectGaplessFeed(job.uid);
    ASSERT_OK(jobs().Cancel({"default", id}, 0, kUser).status());
  }
}

// By value: a loop may run over it.
template <typename T>
T Must(absl::StatusOr<T> result) {
  EXPECT_OK(result.status());
  return *std::move(result);
}

// Does the same random things to both stores; whatever one answers, the other must.
class RandomWalk {
 public:
  explicit RandomWalk(unsigned seed) : random_(seed) {
    for (const char* kind : {"memory", "postgres"}) backends_.push_back(MakeBackend(kind));
  }

  void Step() {
    const int what = Pick(24);
    const std::string id = absl::StrCat("job", Pick(4));
    const std::string node = absl::StrCat("n", Pick(2));
    const auto slot = Pick(2);
    const auto kind = Pick(8);
    std::string answers[2];
    backends_[0]->Pass(absl::Milliseconds(1));  // as it passes by itself for PostgreSQL
    for (int i = 0; i < 2; ++i) {
      stores_ = &backends_[i]->stores();
      answers[i] = absl::StrCat(what, " ", id, " ", Do(what, id, node, slot, kind, *backends_[i]),
                                "\n", Describe(id));
    }
    ASSERT_EQ(answers[0], answers[1]) << "after step " << steps_;
    ++steps_;
  }

  const std::set<JobState>& seen() const { return seen_; }
  int rejoins() const { return rejoins_; }

 private:
  int Pick(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  std::string Do(int what, const std::string& id, const std::string& node, int slot, int kind,
                 Backend& backend) {
    const JobName name{"default", id};
    switch (what) {
      case 0:
        return Submit(id);
      case 1:
        return kind < 3 ? Code(stores_->jobs().Cancel(name, 0, kUser).status()) : "";
      case 2:
        return kind < 4 ? Code(stores_->jobs().Pause(name, 0, kUser, absl::Seconds(5)).status())
                        : "";
      case 3:
        return Code(stores_->jobs().Resume(name, 0, kUser).status());
      case 4:
        return kind < 4 ? Code(stores_->jobs().Delete(name, 0)) : "";
      case 5:
        return Register(node, slot, kind);
      case 6:
        return kind < 2 ? Lose(node, backend) : "";
      case 7:
        return Absent(id, node, kind);
      case 8:
      case 9:
        return Place(id, node, slot, kind);
      case 20:
        return kind < 2 ? absl::StrCat(stores_->fleet().ConfirmEmpty(node).value_or(-1)) : "";
      case 21:
        return EndCancel(id);
      case 22:
      case 23:
        return HearAgain(node, kind);
      default:
        return Report(id, kind);
    }
  }

  static std::string Code(const absl::Status& status) {
    return absl::StatusCodeToString(status.code());
  }

  std::string Submit(const std::string& id) {
    JobRecord job;
    job.uid = absl::StrCat(id, "-", steps_);
    job.project = "default";
    job.job_id = id;
    job.max_restarts = 1;
    return Code(stores_->jobs().Submit(job).status());
  }

  // The agent that has the node's name, by the store, or another one.
  AgentIdentity AgentOf(const std::string& node, int kind) {
    if (kind == 0) return {node, "", ""};
    if (kind == 1) return {node, "someone", "boot-9:0:0"};
    for (const NodeRecord& record : Must(stores_->fleet().ListNodes())) {
      if (record.name == node) return {node, record.uid, record.instance, record.incarnation};
    }
    return {node};
  }

  // Boots anew, has another state directory, or is another agent, now and then.
  std::string Register(const std::string& node, int slot, int kind) {
    NodeRecord record;
    record.name = node;
    if (kind > 0) record.uid = absl::StrCat("agent-", kind < 3 ? 1 : 0);
    if (kind > 0) {
      record.instance =
          absl::StrCat("boot-", slot, ":0:", kind % 2, ":", kind < 6 ? "machine" : "");
    }
    if (kind % 4 == 1) record.found = Must(ListRanks(stores_->fleet(), node));
    record.incarnation = absl::StrCat("i", steps_);
    record.slots = {{.index = 0}, {.index = 1}};
    return Code(stores_->fleet().RegisterNode(record, absl::Seconds(1000)).status());
  }

  std::string Lose(const std::string& node, Backend& backend) {
    backend.Pass(absl::Seconds(1001));
    const auto lease = stores_->scheduler().Lead("leader", absl::Seconds(10), std::nullopt);
    Decisions decisions;
    const auto nodes = stores_->fleet().ListNodes();
    for (const NodeRecord& one : *nodes) {
      if (one.name == node) decisions.lost_nodes = {{one.name, one.beat}};
    }
    return absl::StrCat(stores_->scheduler().Apply(lease->epoch, decisions).value_or(-1));
  }

  // The agent of the node as it was begins another session, and tells what runs there.
  std::string HearAgain(const std::string& node, int kind) {
    const AgentIdentity agent = AgentOf(node, 2);
    NodeRecord record;
    record.name = node;
    record.uid = agent.uid;
    record.instance = agent.instance;
    record.incarnation = absl::StrCat("i", steps_);
    record.slots = {{.index = 0}, {.index = 1}};
    for (const HeldRank& rank : Must(stores_->fleet().ReadRanks(node)).ranks) {
      record.running.push_back({rank.id, kind == 3 ? "another" : rank.claim.token});
    }
    const auto registered = stores_->fleet().RegisterNode(record, absl::Seconds(1000));
    if (!registered.ok()) return Code(registered.status());
    rejoins_ += static_cast<int>(registered->running.size());
    return absl::StrCat(registered->running.size());
  }

  std::string Absent(const std::string& id, const std::string& node, int kind) {
    const AgentIdentity agent = AgentOf(node, kind);
    if (kind % 2 == 0) {  // of whichever jobs and attempts
      return absl::StrCat(
          Must(stores_->fleet().ReportAbsent(agent, Must(ListRanks(stores_->fleet(), node)))));
    }
    const auto job = stores_->jobs().Get({"default", id});
    if (!job.ok()) return "";
    const RankId rank{job->uid, job->attempt, 0};
    return absl::StrCat(Must(stores_->fleet().ReportAbsent(agent, {rank})));
  }

  std::string EndCancel(const std::string& id) {
    const auto job = stores_->jobs().Get({"default", id});
    if (!job.ok()) return "";
    const auto lease = stores_->scheduler().Lead("leader", absl::Seconds(10), std::nullopt);
    return absl::StrCat(Must(
        stores_->scheduler().Apply(lease->epoch, {.overdue_cancels = {{job->uid, job->version}}})));
  }

  std::string Place(const std::string& id, const std::string& node, int slot, int kind) {
    const auto job = stores_->jobs().Get({"default", id});
    if (!job.ok()) return "";
    Placement placement{
        .job_uid = job->uid, .job_version = job->version, .ranks = {{node, {slot}}}};
    if (kind == 0) placement.ranks.push_back({node, {1 - slot}});
    Decisions decisions{.placements = {placement}};
    if (kind == 1) {
      decisions.suspensions = {
          {job->uid, job->version, SuspendCause::kPreempted, kUser, absl::Seconds(5)}};
    }
    const auto lease = stores_->scheduler().Lead("leader", absl::Seconds(10), std::nullopt);
    return absl::StrCat(stores_->scheduler().Apply(lease->epoch, decisions).value_or(-1));
  }

  // The next event of a rank of the job's newest attempt, as a worker might report it.
  std::string Report(const std::string& id, int kind) {
    const auto job = stores_->jobs().Get({"default", id});
    if (!job.ok() || job->attempt == 0) return "";
    const AttemptRecord attempt = Must(stores_->fleet().ListAttempts(job->uid)).back();
    const RankRecord& rank = attempt.ranks[kind % attempt.ranks.size()];
    RankEventRecord event{.sequence = rank.acked_sequence + 1, .time = absl::UnixEpoch()};
    const int64_t step = job->step + 1;
    if (rank.state == RankState::kAssigned && kind < 6) {
      event.what = RankRestored{attempt.restore_step};
    } else if (kind < 2) {
      event.what = MetricRecord{step, MetricSplit::kTrain, {{"loss", 1.0}}};
    } else if (kind == 2) {
      event.what = CheckpointWritten{{.step = step, .uri = absl::StrCat("uri", step)},
                                     {absl::StrCat("uri", step - 3)}};
    } else if (kind == 3) {
      event.what = RankFinished{job->state == JobState::kSuspending, step};
    } else if (kind == 4) {
      event.what = FailureRecord{"STORAGE", "disk full", step % 2 > 0};
    } else {
      event.what = RankExited{kind == 5 ? 75 : 0, kind == 6 ? 9 : 0, kind == 7, "log"};
    }
    // Also in a group with a repetition and with those of nobody.
    const AgentIdentity agent = AgentOf(rank.node, steps_ % 16);
    const std::string claim = steps_ % 16 == 2 ? "another" : "";
    std::vector<RankEvents> group = {{agent, rank.id, {event}, claim}};
    if (steps_ % 2 == 0) {
      group.push_back({agent, rank.id, {event}, claim});
      group.push_back({agent, {"nobody", 1, 0}, {event}});
    }
    std::string answers;
    for (const auto& result : stores_->fleet().AppendGroup(group)) {
      absl::StrAppend(&answers, Code(result.status()), " ");
      if (!result.ok()) continue;
      absl::StrAppend(&answers, result->acked_sequence, " ", result->fenced, " ",
                      result->job_changed, " ", result->session_over, "; ");
    }
    return answers;
  }

  // Everything about a job but times.
  std::string Describe(const std::string& id) {
    const auto job = stores_->jobs().Get({"default", id});
    if (!job.ok()) return Code(job.status());
    seen_.insert(job->state);
    std::string text =
        absl::StrCat(JobStateName(job->state), " ", job->reason.code, " ", job->reason.message, " ",
                     SuspendCauseName(job->suspend_cause), " v", job->version, " a", job->attempt,
                     " r", job->restarts, " l", job->losses, " ", job->avoid_node, " s", job->step,
                     " ", job->newest_checkpoint_uri, " ",
                     job->failure.has_value() ? job->failure->message : "", "\n");
    for (const AttemptRecord& attempt : Must(stores_->fleet().ListAttempts(job->uid))) {
      absl::StrAppend(&text, attempt.attempt, " from ", attempt.restore_step, ":");
      for (const RankRecord& rank : attempt.ranks) {
        absl::StrAppend(&text, " ", rank.node, " ", RankStateName(rank.state), " ",
                        RankOutcomeName(rank.outcome), " ", rank.acked_sequence);
      }
    }
    for (const FeedRecord& item : Must(stores_->jobs().ReadFeed(job->uid, 0, 10000))) {
      absl::StrAppend(&text, "\n", item.sequence, " ", item.attempt, " ", item.what.index());
    }
    for (const MetricRow& row :
         Must(stores_->jobs().ReadMetrics(job->uid, {.include_superseded = true}))) {
      absl::StrAppend(&text, "\n", row.sequence, " ", row.point.step, " ", row.superseded);
    }
    for (const CheckpointRecord& one : Must(stores_->jobs().ListCheckpoints(job->uid))) {
      absl::StrAppend(&text, "\n", one.step, " ", one.uri, " ", one.attempt);
    }
    for (const NodeRecord& node : Must(stores_->fleet().ListNodes())) {
      for (const LostRank& lost : node.lost_ranks) {
        absl::StrAppend(&text, "\n", node.name, " lost ", lost.id.job_uid, " ", lost.id.attempt,
                        " ", lost.id.rank, " ", lost.claim.node_uid, " ", lost.claim.instance, " ",
                        absl::StrJoin(lost.slots, ","), " ", MayHoldSlots(node, lost));
      }
      for (const NodeFailure& failure : node.failures) {
        absl::StrAppend(&text, "\n", node.name, " ", failure.job_id, " ", failure.attempt, " ",
                        failure.category, failure.charged);
      }
    }
    for (const char* node : {"n0", "n1"}) {
      for (const RankId& rank : Must(ListRanks(stores_->fleet(), node))) {
        absl::StrAppend(&text, "\n", node, " ", rank.job_uid, " ", rank.attempt, " ", rank.rank);
      }
      const auto desired = stores_->fleet().ReadDesired(AgentOf(node, 2));
      if (!desired.ok()) absl::StrAppend(&text, "\n", node, " ", Code(desired.status()));
      for (const DesiredRank& rank : desired.value_or(std::vector<DesiredRank>())) {
        absl::StrAppend(&text, "\n", node, " desires ", rank.job.job_id,
                        rank.suspend ? " not" : "");
      }
    }
    return text;
  }

  std::mt19937 random_;
  std::vector<std::unique_ptr<Backend>> backends_;
  Stores* stores_ = nullptr;
  int steps_ = 0;
  int rejoins_ = 0;
  std::set<JobState> seen_;
};

TEST(RandomWalks, BothStoresAnswerTheSame) {
  std::set<JobState> seen;
  int rejoins = 0;
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    SCOPED_TRACE(seed);
    RandomWalk walk(seed);
    for (int step = 0; step < 500 && !::testing::Test::HasFatalFailure(); ++step) walk.Step();
    seen.insert(walk.seen().begin(), walk.seen().end());
    rejoins += walk.rejoins();
  }
  EXPECT_GT(rejoins, 0);
  for (const JobState state : kAllJobStates) EXPECT_TRUE(seen.count(state)) << JobStateName(state);
}

}  // namespace
}  // namespace trainyard::testing
