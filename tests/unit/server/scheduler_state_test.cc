#include "server/scheduler/scheduler_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduler/slot_limits.h"
#include "storage/records/change.h"
#include "tests/unit/server/snapshots.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A cluster in which random things happen, told as snapshots and as changes.
class Cluster {
 public:
  // `quiet`: few jobs come, so that slots are to spare.
  explicit Cluster(uint64_t seed, bool quiet = false)
      : random_(seed), quiet_(quiet), alike_(seed % 2 == 0) {
    for (int n = 0; n < 6; ++n) {
      NodeRecord node =
          MakeNode({.name = absl::StrCat("n", n), .cpu = 1 + Draw(3), .cuda = Draw(4)});
      for (SlotRecord& slot : node.slots) slot.memory_bytes = int64_t{4 << Draw(3)} << 30;
      Compute(node);
      nodes_[node.name] = node;
      changed_nodes_.insert(node.name);
    }
  }

  int Draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  void Step() {
    now_ += absl::Milliseconds(Draw(20) == 0 ? -1000 : 100);  // the store's clock may be set back
    switch (Draw(10)) {
      case 0:
      case 1:
        return Submit();
      case 2:
        return End();
      case 3:
        return FailWithBackoff();
      case 4:
        return ChangeNode();
      case 5:
        return LoseRank();
      case 7:
        return Cancel();
      case 6:
        return Begin();
      case 8:
        return Leave();
      case 9:
        return SetLimit();
    }
  }

  SchedulerSnapshot Snapshot() const {
    SchedulerSnapshot snapshot;
    snapshot.now = now_;
    for (const auto& [uid, job] : jobs_) snapshot.jobs.push_back(job);
    for (const auto& [uid, attempt] : attempts_) snapshot.attempts.push_back(attempt);
    for (const auto& [name, node] : nodes_) snapshot.nodes.push_back(node);
    for (const auto& [project, limit] : limits_) {
      if (limit.has_value()) snapshot.slot_limits[project] = *limit;
    }
    return snapshot;
  }

  // Since the last call.
  SnapshotChanges Changes(bool whole) {
    SnapshotChanges changes;
    changes.now = now_;
    changes.whole = whole;
    for (const auto& [uid, job] : jobs_) {
      if (whole || changed_.count(uid) > 0) changes.jobs.push_back(job);
    }
    for (const auto& [uid, attempt] : attempts_) {
      if (whole || changed_.count(uid) > 0) changes.attempts.push_back(attempt);
    }
    for (const std::string& uid : changed_) {
      if (!whole && jobs_.count(uid) == 0) changes.gone.push_back(uid);
    }
    changes.leases.emplace();
    for (const auto& [name, node] : nodes_) {
      if (whole || changed_nodes_.count(name) > 0) changes.nodes.push_back(node);
      changes.leases->push_back({name, node.beat, node.report});
    }
    for (const auto& [project, limit] : limits_) {
      if (whole || changed_limits_.count(project) > 0) {
        changes.slot_limits.emplace_back(project, limit);
      }
    }
    changed_.clear();
    changed_nodes_.clear();
    changed_limits_.clear();
    return changes;
  }

  void Apply(const Decisions& decisions) {
    for (const Placement& placement : decisions.placements) {
      JobRecord& job = jobs_.at(placement.job_uid);
      job.state = JobState::kStarting;
      ++job.attempt;
      ++job.version;
      job.reason = placement.reason;
      AttemptRecord attempt{.job_uid = job.uid, .attempt = job.attempt, .create_time = now_};
      for (const Placement::Rank& rank : placement.ranks) {
        attempt.ranks.push_back({.node = rank.node, .slots = rank.slots});
      }
      attempts_[job.uid] = attempt;
      changed_.insert(job.uid);
    }
    for (const Resize& resize : decisions.resizes) {
      JobRecord& job = jobs_.at(resize.job_uid);
      job = ResizeJob(job, resize.ranks, resize.grows, resize.reason, resize.grace, now_).job;
      changed_.insert(job.uid);
    }
    for (const NodeCordon& cordon : decisions.cordons) {
      nodes_.at(cordon.name).cordon = cordon.reason;
      changed_nodes_.insert(cordon.name);
    }
    for (const ReasonUpdate& update : decisions.reasons) {
      jobs_.at(update.job_uid).reason = update.reason;
      changed_.insert(update.job_uid);
    }
  }

 private:
  // The node registers with a worker that computes in one of three ways, of which one is not told;
  // in half of the clusters all compute alike.
  void Compute(NodeRecord& node) {
    const int way = alike_ ? 0 : Draw(3);
    for (SlotRecord& slot : node.slots) {
      slot.arithmetic.clear();
      if (way < 2) slot.arithmetic["loops"] = way == 0 ? "avx2" : "avx512";
      if (way < 2) slot.arithmetic["caches"] = absl::StrCat(Draw(2), " KiB");
    }
  }

  void Submit() {
    if (quiet_ && jobs_.size() > 4) return;
    for (int i = 0; i < (quiet_ ? 1 : 3); ++i) {
      JobRecord job = MakeJob({.id = absl::StrCat("j", ++submitted_),
                               .slots = 1 + Draw(3),
                               .priority = Draw(3),
                               .device = Draw(2) == 0 ? "" : "CUDA",
                               .bytes = int64_t{1 << Draw(5)} << 30});
      job.max_slots += Draw(2) * Draw(6);
      job.project = absl::StrCat("p", Draw(3));
      job.arithmetic_rule = static_cast<ArithmeticRule>(Draw(4));
      job.group_ranks = 1 + submitted_ % 3;
      job.logical_ranks = Draw(2) * (job.max_slots + Draw(4));
      // Some seem to come from the future: the store's clock was set back.
      job.create_time = now_ - absl::Milliseconds(Draw(50) - (Draw(10) == 0 ? 300 : 0));
      changed_.insert(job.uid);
      jobs_[job.uid] = job;
    }
  }

  JobRecord* Any() {
    if (jobs_.empty()) return nullptr;
    auto it = jobs_.begin();
    std::advance(it, Draw(static_cast<int>(jobs_.size())));
    changed_.insert(it->first);
    return &it->second;
  }

  // Of a job that starts: it runs.
  void Begin() {
    JobRecord* const job = Any();
    if (job == nullptr || job->state != JobState::kStarting) return;
    job->state = JobState::kRunning;
    ++job->version;
    if (job->arithmetic_rule == ArithmeticRule::kSame && job->arithmetic.empty()) {
      job->arithmetic = Draw(2) == 0 ? "loops: avx2" : "loops: avx512";
    }
    for (RankRecord& rank : attempts_.at(job->uid).ranks) {
      if (rank.state == RankState::kAssigned) rank.state = RankState::kRunning;
    }
  }

  // The gang of a job that is resized has left.
  void Leave() {
    for (int i = 0; i < 8; ++i) {
      JobRecord* const job = Any();
      if (job == nullptr || job->state != JobState::kSuspending) continue;
      job->state = JobState::kQueued;
      ++job->version;
      attempts_.erase(job->uid);
    }
  }

  void End() {
    const JobRecord* job = Any();
    if (job == nullptr) return;
    attempts_.erase(job->uid);
    jobs_.erase(std::string(job->uid));
  }

  void FailWithBackoff() {
    JobRecord* const job = Any();
    if (job == nullptr || attempts_.erase(job->uid) == 0) return;
    job->state = JobState::kQueued;
    ++job->version;
    ++job->restarts;
    job->reason = {reason::kBackoff, "it failed"};  // which ends a resize
    job->not_before = now_ + absl::Milliseconds(Draw(500));
    job->avoid_node = Draw(3) == 0 ? "" : absl::StrCat("n", Draw(7));
  }

  void ChangeNode() {
    auto it = nodes_.begin();
    std::advance(it, Draw(static_cast<int>(nodes_.size())));
    NodeRecord& node = it->second;
    const int what = Draw(7);
    if (what == 6) {
      Compute(node);
      changed_nodes_.insert(node.name);
      return;
    }
    if (what == 5) {
      node.lost_ranks.clear();
      changed_nodes_.insert(node.name);
      return;
    }
    if (what == 4) {
      node.failures.push_back({.job_uid = absl::StrCat("uid-j", 1 + Draw(submitted_ + 1)),
                               .job_id = "j",
                               .attempt = ++failures_,
                               .category = Draw(2) == 0 ? "LOST" : "DEVICE",
                               .time = now_});
      changed_nodes_.insert(node.name);
      return;
    }
    if (what == 0) node.draining = !node.draining;
    if (what == 1) node.reachable = !node.reachable;
    if (what == 2) node.report.disk_free_bytes = Draw(2) == 0 ? 0 : int64_t{1} << 40;
    if (what == 3 && nodes_.size() > 3) {
      changed_nodes_.erase(it->first);
      nodes_.erase(it);
      return;
    }
    if (what >= 2) return;
    node.lease_end = now_ + absl::Seconds(10);
    changed_nodes_.insert(node.name);
  }

  void LoseRank() {
    const JobRecord* job = Any();
    if (job == nullptr) return;
    const auto attempt = attempts_.find(job->uid);
    if (attempt == attempts_.end()) return;
    RankRecord& rank = attempt->second.ranks[Draw(static_cast<int>(attempt->second.ranks.size()))];
    if (IsOver(rank.state)) return;
    rank.state = Draw(2) == 0 ? RankState::kGone : RankState::kLost;
    const auto node = nodes_.find(rank.node);
    if (rank.state == RankState::kGone || node == nodes_.end()) return;
    rank.gone_time = now_ - absl::Minutes(Draw(15));
    node->second.lost_ranks.push_back({.id = rank.id, .slots = rank.slots, .time = rank.gone_time});
    changed_nodes_.insert(rank.node);
  }

  // An admin limits the slots of a project, or lifts its limit.
  void SetLimit() {
    const std::string project = absl::StrCat("p", Draw(3));
    limits_[project] = Draw(3) == 0 ? std::nullopt : std::optional<int>(Draw(8));
    changed_limits_.insert(project);
  }

  void Cancel() {
    JobRecord* const job = Any();
    if (job == nullptr || attempts_.count(job->uid) == 0) return;
    job->state = JobState::kCancelling;
    ++job->version;
  }

  std::mt19937_64 random_;
  const bool quiet_;
  const bool alike_;
  absl::Time now_ = TestNow();
  int submitted_ = 0;
  int failures_ = 0;
  std::map<std::string, JobRecord> jobs_;
  std::map<std::string, AttemptRecord> attempts_;
  std::map<std::string, NodeRecord> nodes_;
  std::map<std::string, std::optional<int>> limits_;  // of projects
  std::set<std::string> changed_, changed_nodes_, changed_limits_;
};

// Reasons in any order: a pass tells them by demand.
std::string Text(const Pass& pass) {
  std::string text;
  for (const Placement& placement : pass.decisions.placements) {
    absl::StrAppend(&text, "place ", placement.job_uid, " ", placement.reason.message, ":");
    for (const auto& rank : placement.ranks) {
      absl::StrAppend(&text, " ", rank.node, "/", absl::StrJoin(rank.slots, "+"));
    }
    absl::StrAppend(&text, "\n");
  }
  std::set<std::string> reasons;
  for (const ReasonUpdate& told : pass.decisions.reasons) {
    reasons.insert(absl::StrCat("tell ", told.job_uid, " ", told.job_version, " ", told.reason.code,
                                " ", told.reason.message, "\n"));
  }
  absl::StrAppend(&text, absl::StrJoin(reasons, ""));
  for (const Suspension& suspension : pass.decisions.suspensions) {
    absl::StrAppend(&text, "suspend ", suspension.job_uid, " ", suspension.reason.message, "\n");
  }
  for (const Resize& resize : pass.decisions.resizes) {
    absl::StrAppend(&text, "resize ", resize.job_uid, " ", resize.reason.message, ":");
    for (const auto& rank : resize.ranks) {
      absl::StrAppend(&text, " ", rank.node, "/", absl::StrJoin(rank.slots, "+"));
    }
    absl::StrAppend(&text, resize.grows ? " grows\n" : "\n");
  }
  if (pass.spare.has_value()) {
    absl::StrAppend(&text, "spare for ", absl::StrJoin(*pass.spare, " "), "\n");
  }
  for (const NodeCordon& cordon : pass.decisions.cordons) {
    absl::StrAppend(&text, "cordon ", cordon.name, " ", cordon.reason, "\n");
  }
  for (const LossCharge& charge : pass.decisions.charges) {
    absl::StrAppend(&text, "charge ", charge.job_uid, " ", charge.node, " ", charge.survivor, "\n");
  }
  std::set<std::string> overdue;
  for (const OverdueCancel& one : pass.decisions.overdue_cancels) overdue.insert(one.job_uid);
  absl::StrAppend(&text, "overdue ", absl::StrJoin(overdue, " "), "\n");
  for (const LostNode& lost : pass.decisions.lost_nodes) {
    absl::StrAppend(&text, "lose ", lost.name, " ", lost.beat, "\n");
  }
  return absl::StrCat(text, "next ", absl::FormatTime(pass.next), pass.suspension_overdue);
}

// Of a class that waits the reason is that of its jobs that do. Counts them.
void ExpectReasons(const SchedulerSnapshot& snapshot, const Pass& pass,
                   const WaitingClasses& waiting, int& counted) {
  std::map<DemandClass, Reason> reasons;
  for (const WaitingClass& one : waiting) {
    EXPECT_TRUE(reasons.emplace(*one.demand, one.reason).second) << "each class once";
  }
  std::map<std::string, const QueuedJob*> queued;
  for (const QueuedJob& job : pass.queue) queued[job.uid] = &job;
  for (const JobRecord* job : WaitingJobsOf(snapshot)) {
    const auto found = queued.find(job->uid);
    if (found == queued.end()) continue;  // the pass looked at no queue
    const QueuedJob& entry = *found->second;
    if (entry.placed || entry.awaited || job->not_before > snapshot.now) continue;
    const auto reason = reasons.find(ClassOf(*job, snapshot.slot_limits));
    ASSERT_NE(reason, reasons.end()) << job->uid;
    EXPECT_EQ(reason->second, entry.reason) << job->uid;
    ++counted;
  }
}

TEST(ForetoldReasons, AreThoseOfTheNewestPass) {
  const auto limits = std::make_shared<const SlotLimits>(SlotLimits{{"limited", 1}});
  const DemandClass small = ClassOf(MakeJob({.id = "a"}), *limits);
  const DemandClass large = ClassOf(MakeJob({.id = "b", .slots = 2}), *limits);
  ForetoldReasons foretold;
  EXPECT_EQ(foretold.Find(MakeJob({.id = "c"})), std::nullopt);
  foretold.Set({{&small, {"ONE", "one"}}, {&large, {"TWO", "two"}}}, limits);
  JobRecord limited = MakeJob({.id = "d"});
  limited.project = "limited";
  EXPECT_EQ(foretold.Find(limited), std::nullopt);
  EXPECT_EQ(foretold.Find(MakeJob({.id = "c"})), (Reason{"ONE", "one"}));
  EXPECT_EQ(foretold.Find(MakeJob({.id = "c", .slots = 2})), (Reason{"TWO", "two"}));
  EXPECT_EQ(foretold.Find(MakeJob({.id = "c", .slots = 3})), std::nullopt);
  foretold.Set({{&small, {"THREE", "three"}}}, limits);
  EXPECT_EQ(foretold.Find(MakeJob({.id = "c"})), (Reason{"THREE", "three"}));
  EXPECT_EQ(foretold.Find(MakeJob({.id = "c", .slots = 2})), std::nullopt);
}

// No project that gets slots has more than its limit then, but for what was decided before the
// limit.
void ExpectWithinLimits(const SchedulerSnapshot& snapshot, const Decisions& decisions) {
  std::map<std::string, const JobRecord*> jobs;
  for (const JobRecord& job : snapshot.jobs) jobs[job.uid] = &job;
  std::map<std::string, const AttemptRecord*> attempts;
  for (const AttemptRecord& attempt : snapshot.attempts) attempts[attempt.job_uid] = &attempt;
  const ProjectSlots held(snapshot);
  std::map<std::string, int> given;
  for (const Placement& placement : decisions.placements) {
    const JobRecord& job = *jobs.at(placement.job_uid);
    if (!IsResizing(job)) given[job.project] += SlotsIn(placement.ranks);
  }
  for (const Resize& resize : decisions.resizes) {
    const auto before = static_cast<int>(attempts.at(resize.job_uid)->ranks.size());
    const int more = SlotsIn(resize.ranks) - before;
    if (more > 0) given[jobs.at(resize.job_uid)->project] += more;
  }
  for (const auto& [project, slots] : given) {
    const auto limit = snapshot.slot_limits.find(project);
    if (limit == snapshot.slot_limits.end() || slots == 0) continue;
    EXPECT_LE(held.HeldBy(project) + slots, limit->second) << project;
  }
}

// 48 random clusters each, by the first seed.
class RandomClusters : public ::testing::TestWithParam<int> {};

TEST_P(RandomClusters, FoldedChangesDecideWhatAPassOverTheSnapshotDecides) {
  PlannerOptions options;
  options.most_placements = options.most_reasons = SIZE_MAX;
  options.grow_after = absl::Milliseconds(300);
  int placements = 0, resizes = 0, growths = 0, waiting = 0, limited = 0;
  for (int seed = GetParam(); seed < GetParam() + 48; ++seed) {
    Cluster cluster(seed, seed % 3 != 0);
    SchedulerState state;
    options.tell_after = absl::Milliseconds(seed % 2 == 0 ? 250 : 0);
    for (int step = 0; step < 200; ++step) {
      cluster.Step();
      if (cluster.Draw(3) == 0) continue;  // several changes at once
      SchedulerSnapshot snapshot = cluster.Snapshot();
      const bool whole = step == 0 || cluster.Draw(50) == 0;
      state.Fold(cluster.Changes(whole || state.now() == absl::Time()));
      const Pass folded = state.Plan(options);
      for (AttemptRecord& attempt : snapshot.attempts) {
        const auto& holders = state.fold().holders();
        const auto known = holders.find(attempt.job_uid);
        if (known != holders.end()) attempt.spare_since = known->second.attempt.spare_since;
      }
      const Pass reference = PlanPass(snapshot, options);
      ASSERT_EQ(Text(folded), Text(reference)) << "seed " << seed << ", step " << step;
      ExpectReasons(snapshot, reference, state.waiting(), waiting);
      placements += static_cast<int>(folded.decisions.placements.size());
      for (const QueuedJob& job : reference.queue)
        limited += job.reason.code == reason::kProjectLimit;
      ExpectWithinLimits(snapshot, folded.decisions);
      for (const Resize& resize : folded.decisions.resizes) {
        ++resizes;
        growths += resize.grows;
      }
      if (cluster.Draw(2) == 0) cluster.Apply(folded.decisions);
    }
  }
  EXPECT_GT(placements, 100);
  EXPECT_GT(resizes - growths, 5);
  EXPECT_GT(growths, 0);
  EXPECT_GT(waiting, 100);
  EXPECT_GT(limited, 100);
}

INSTANTIATE_TEST_SUITE_P(FirstSeed, RandomClusters, ::testing::Range(1, 241, 48));

// In pieces of a few decisions it comes to the same end.
TEST(SchedulerState, DecidesInPiecesUntilNothingIsLeft) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 30});
  for (int i = 0; i < 100; ++i) s.Queued({.id = absl::StrCat("j", i), .age_seconds = 200 - i});
  SchedulerState state;
  SnapshotChanges changes{.now = TestNow(), .whole = true, .jobs = s.snapshot.jobs};
  changes.nodes = s.snapshot.nodes;
  state.Fold(changes);
  PlannerOptions options;
  options.most_placements = options.most_reasons = 7;
  std::vector<std::string> placed;
  int told = 0;
  for (int pass = 0; pass < 30; ++pass) {
    const Decisions decisions = state.Plan(options).decisions;
    SnapshotChanges next{.now = TestNow()};
    for (const Placement& placement : decisions.placements) {
      placed.push_back(placement.job_uid);
      JobRecord job = MakeJob({.id = placement.job_uid.substr(4)});
      job.state = JobState::kStarting;
      next.jobs.push_back(job);
      next.attempts.push_back({.job_uid = job.uid, .attempt = 1});
      for (const auto& rank : placement.ranks) {
        next.attempts.back().ranks.push_back({.node = rank.node, .slots = rank.slots});
      }
    }
    for (const ReasonUpdate& update : decisions.reasons) {
      ++told;
      JobRecord job = s.snapshot.jobs[std::stoi(update.job_uid.substr(5))];
      job.reason = update.reason;
      next.jobs.push_back(job);
    }
    state.Fold(next);
  }
  EXPECT_EQ(placed.size(), 30u);
  EXPECT_EQ(placed.front(), "uid-j0");
  EXPECT_EQ(told, 70);
  EXPECT_THAT(state.Plan(options).decisions.reasons, IsEmpty());
}

PlannerOptions ToldAfterThreeSeconds() {
  PlannerOptions options;
  options.tell_after = absl::Seconds(3);
  return options;
}

// Folds the jobs of `s` into `state`, and expects of it what a plan of the whole snapshot decides.
Pass PlanByChangesAndWhole(const Snapshots& s, SchedulerState& state) {
  state.Fold({.now = TestNow(), .whole = true, .jobs = s.snapshot.jobs});
  const Pass pass = state.Plan(ToldAfterThreeSeconds());
  EXPECT_EQ(Text(pass), Text(PlanPass(s.snapshot, ToldAfterThreeSeconds())));
  return pass;
}

TEST(SchedulerState, AJobIsToldWhyItWaitsOnceItHasWaited) {
  Snapshots s;
  s.Queued({.id = "young", .age_seconds = 1}).Queued({.id = "old", .age_seconds = 3});
  s.Queued({.id = "foretold", .age_seconds = 1});
  s.snapshot.jobs.back().reason = {"WAITING_FOR_SLOTS", "too few such slots are free"};
  SchedulerState state;
  const Pass pass = PlanByChangesAndWhole(s, state);
  ASSERT_EQ(pass.decisions.reasons.size(), 1u);
  EXPECT_EQ(pass.decisions.reasons[0].job_uid, "uid-old");
  EXPECT_EQ(pass.next, TestNow() + absl::Seconds(2)) << "then the other one";
}

TEST(SchedulerState, AJobInBackoffIsToldAtOnceHoweverYoungItIs) {
  Snapshots s;
  s.Queued({.id = "failed", .age_seconds = 1});
  s.snapshot.jobs[0].not_before = TestNow() + absl::Seconds(9);
  SchedulerState state;
  const Pass pass = PlanByChangesAndWhole(s, state);
  ASSERT_EQ(pass.decisions.reasons.size(), 1u);
  EXPECT_EQ(pass.decisions.reasons[0].reason, ReasonForBackoff(s.snapshot.jobs[0]));
}

TEST(SchedulerState, JobsThatCameWithinHalfASecondAreToldTogether) {
  Snapshots s;
  s.Queued({.id = "first"}).Queued({.id = "second"}).Queued({.id = "later"});
  s.snapshot.jobs[0].create_time = TestNow() - absl::Milliseconds(2900);
  s.snapshot.jobs[1].create_time = TestNow() - absl::Milliseconds(2600);
  s.snapshot.jobs[2].create_time = TestNow() - absl::Milliseconds(2400);
  SchedulerState state;
  const Pass pass = PlanByChangesAndWhole(s, state);
  EXPECT_THAT(pass.decisions.reasons, IsEmpty());
  EXPECT_EQ(pass.next, TestNow() + absl::Milliseconds(500));
  SnapshotChanges later{.now = pass.next};
  state.Fold(later);
  const Pass told = state.Plan(ToldAfterThreeSeconds());
  EXPECT_EQ(told.decisions.reasons.size(), 2u);
  EXPECT_EQ(told.next, TestNow() + absl::Seconds(1)) << "then the third one";
}

TEST(SchedulerState, AJumpOfTheStoresClockLosesNoNode) {
  Snapshots s;
  s.Node({.name = "n", .cpu = 1});
  SchedulerState state;
  LeaseJudge judge(absl::Seconds(10));
  SnapshotChanges changes{.now = TestNow(), .whole = true, .nodes = s.snapshot.nodes};
  state.Fold(changes);
  state.Judge(judge, absl::Seconds(100));
  SnapshotChanges later{.now = TestNow() + absl::Seconds(30)};
  state.Fold(later);
  state.Judge(judge, absl::Seconds(101));
  EXPECT_THAT(state.Plan({}).decisions.lost_nodes, IsEmpty());
}

}  // namespace
}  // namespace trainyard
