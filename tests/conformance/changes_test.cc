// ReadChanges: what it tells, folded, is what ReadSnapshot shows.

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/scheduler_fold.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

std::string TextOf(const JobRecord& job) {
  return absl::StrCat("job ", job.uid, " ", job.job_id, " ", job.version, " ",
                      JobStateName(job.state), " ", job.reason.code, " ", job.reason.message, " ",
                      job.attempt, " ", absl::FormatTime(job.not_before), "\n");
}

std::string TextOf(const AttemptRecord& attempt) {
  std::string text = absl::StrCat("attempt ", attempt.job_uid, " ", attempt.attempt);
  for (const RankRecord& rank : attempt.ranks) {
    absl::StrAppend(&text, " ", rank.node, "/", absl::StrJoin(rank.slots, "+"), "/",
                    RankStateName(rank.state));
  }
  return text + "\n";
}

std::string TextOf(const NodeRecord& node) {
  return absl::StrCat("node ", node.name, " ", node.slots.size(), " ", node.draining, " ",
                      GivesWorkAway(node), " ", node.reachable, " ", node.beat, " ",
                      node.report.disk_free_bytes.value_or(-1), "\n");
}

std::string TextOf(const SchedulerSnapshot& snapshot) {
  std::set<std::string> lines;
  for (const JobRecord* job : JobsOf(snapshot)) lines.insert(TextOf(*job));
  for (const AttemptRecord& attempt : snapshot.attempts) lines.insert(TextOf(attempt));
  for (const NodeRecord& node : snapshot.nodes) lines.insert(TextOf(node));
  return absl::StrJoin(lines, "");
}

std::string TextOf(const SchedulerFold& fold) {
  SchedulerSnapshot snapshot = fold.Jobs();
  for (const auto& [name, node] : fold.nodes()) snapshot.nodes.push_back(node);
  return TextOf(snapshot);
}

class Changes : public StoreSuite {
 protected:
  // Reads on from the last reading; returns what was told.
  SnapshotChanges Read(bool leases = true) {
    absl::StatusOr<SnapshotChanges> changes = scheduler().ReadChanges(fold_.position(), leases);
    EXPECT_OK(changes.status());
    if (!changes.ok()) return {};
    fold_.Fold(*changes);
    return *std::move(changes);
  }

  void ExpectTheSnapshot(const std::string& after) {
    Read();
    const auto snapshot = scheduler().ReadSnapshot();
    ASSERT_OK(snapshot.status());
    EXPECT_EQ(TextOf(fold_), TextOf(*snapshot)) << after;
  }

  SchedulerFold fold_;
};

TEST_P(Changes, FoldedAreWhatTheSnapshotShows) {
  EXPECT_TRUE(Read().whole);
  Register("n1", 2);
  Register("n2", 2);
  ExpectTheSnapshot("nodes registered");
  const JobRecord gang = Submit("gang", 2);
  for (int i = 0; i < 4; ++i) Submit(absl::StrCat("waits", i));
  ExpectTheSnapshot("jobs submitted");
  ASSERT_EQ(Place(gang, {"n1", "n2"}), 1);
  ExpectTheSnapshot("placed");
  const JobRecord placed = Get("gang");
  EventWriter first, second;
  ASSERT_OK(fleet().AppendEvents({"n1", {gang.uid, 1, 0}, first.Restored(0).Take()}).status());
  ExpectTheSnapshot("one rank restored");
  ASSERT_OK(fleet().AppendEvents({"n2", {gang.uid, 1, 1}, second.Restored(0).Take()}).status());
  ExpectTheSnapshot("both restored");
  ASSERT_OK(fleet().AppendEvents({"n2", {gang.uid, 1, 1}, second.Exited(1).Take()}).status());
  ExpectTheSnapshot("one rank gone");
  ASSERT_OK(fleet().AppendEvents({"n1", {gang.uid, 1, 0}, first.Exited(1).Take()}).status());
  ExpectTheSnapshot("back in the queue, or failed");
  ASSERT_OK(fleet().SetDraining("n2", true).status());
  ExpectTheSnapshot("draining");
  ASSERT_OK(fleet().SetLeaving({"n1", "", "", "i1"}, absl::Seconds(30)));
  ExpectTheSnapshot("leaving");
  const JobRecord waits = Get("waits0");
  ASSERT_OK(
      scheduler()
          .Apply(Lead(), {.reasons = {{waits.uid, waits.version, {"NO_NODES", "for a test"}}}})
          .status());
  ExpectTheSnapshot("a reason told");
  ASSERT_OK(jobs().Pause({"default", "waits1"}, 0, kUser, absl::Seconds(1)).status());
  ASSERT_OK(jobs().Cancel({"default", "waits2"}, 0, kUser).status());
  ExpectTheSnapshot("paused and cancelled");
  ASSERT_OK(jobs().Resume({"default", "waits2"}, 0, kUser).status());
  ExpectTheSnapshot("a cancelled job resumed");
  Register("n1", 1);
  ExpectTheSnapshot("registered again with fewer slots");
}

TEST_P(Changes, AreOnlyWhatIsNew) {
  Register("n1", 1);
  Submit("a");
  Read();
  SnapshotChanges none = Read();
  EXPECT_FALSE(none.whole);
  EXPECT_TRUE(none.jobs.empty());
  EXPECT_TRUE(none.nodes.empty());
  EXPECT_TRUE(none.gone.empty());
  const JobRecord job = Submit("b");
  const SnapshotChanges one = Read(false);
  ASSERT_EQ(one.jobs.size(), 1u);
  EXPECT_EQ(one.jobs[0].uid, job.uid);
  EXPECT_TRUE(one.jobs[0].spec.empty());
  EXPECT_FALSE(one.leases.has_value());
}

TEST_P(Changes, AJobThatWasCancelledAndDeletedBetweenTwoReadingsIsGone) {
  const JobRecord job = Submit("a");
  Read();
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  ASSERT_OK(jobs().Delete({"default", "a"}, 0));
  EXPECT_EQ(Read().gone, std::vector<std::string>{job.uid});
  EXPECT_TRUE(fold_.waiting().empty());
}

INSTANTIATE_TEST_SUITE_P(Stores, Changes, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
