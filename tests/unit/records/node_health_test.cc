#include "storage/records/node_health.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

const absl::Time kHealthNow = absl::FromUnixSeconds(1'000'000);

NodeFailure Failure(const std::string& job, const std::string& category, int minutes_ago = 5) {
  return {.job_uid = job,
          .job_id = job,
          .attempt = minutes_ago,
          .category = category,
          .time = kHealthNow - absl::Minutes(minutes_ago)};
}

NodeRecord Node(const std::string& name, std::vector<NodeFailure> failures = {}) {
  NodeRecord node{.name = name};
  node.lease_end = kHealthNow + absl::Seconds(10);
  node.failures = std::move(failures);
  return node;
}

std::vector<NodeFailure> ThreeJobs() {
  return {Failure("a", "DEVICE", 30), Failure("b", "STORAGE", 20), Failure("c", "LOST", 10)};
}

TEST(JobsToBlame, AreTheFewestThatExplainEveryFailure) {
  EXPECT_EQ(JobsToBlame({}, 3), 0);
  EXPECT_EQ(JobsToBlame({Failure("a", "DEVICE"), Failure("a", "DEVICE", 6)}, 3), 1);
  EXPECT_EQ(JobsToBlame(ThreeJobs(), 3), 3);
  EXPECT_EQ(JobsToBlame(ThreeJobs(), 2), 2) << "no more are looked for";
}

// Whoever runs beside a job that takes the node down is lost with it.
TEST(JobsToBlame, OneJobExplainsEveryLossThatItWasPartOf) {
  EXPECT_EQ(
      JobsToBlame({Failure("bad", "LOST", 30), Failure("x", "LOST", 30), Failure("bad", "LOST", 20),
                   Failure("y", "LOST", 20), Failure("z", "LOST", 10), Failure("bad", "LOST", 10)},
                  3),
      1);
  EXPECT_EQ(JobsToBlame(
                {Failure("a", "LOST", 30), Failure("b", "LOST", 30), Failure("c", "LOST", 30)}, 3),
            1)
      << "one loss of the node is one failure, whoever it struck";
  EXPECT_EQ(JobsToBlame({Failure("bad", "LOST", 30), Failure("x", "LOST", 30),
                         Failure("x", "LOST", 20), Failure("y", "DEVICE", 10)},
                        3),
            2);
}

TEST(SicknessOf, ThreeJobsWithinAnHourAreTheNodesFault) {
  const std::string why = SicknessOf(Node("n", ThreeJobs()), kHealthNow);
  EXPECT_TRUE(absl::StrContains(why, "struck 3 jobs (DEVICE of a, STORAGE of b, LOST of c)"))
      << why;
  EXPECT_TRUE(absl::StrContains(why, "trainyard node undrain n")) << why;
  std::vector<NodeFailure> old = ThreeJobs();
  old[0] = Failure("a", "DEVICE", 61);
  EXPECT_EQ(SicknessOf(Node("n", old), kHealthNow), "");
  EXPECT_EQ(SicknessOf(Node("n", {Failure("a", "DEVICE", 3), Failure("a", "DEVICE", 2),
                                  Failure("b", "DEVICE", 1)}),
                       kHealthNow),
            "");
}

TEST(SicknessOf, WhatWasBeforeAnOperatorLookedCountsNoMore) {
  NodeRecord node = Node("n", ThreeJobs());
  node.lifted_time = kHealthNow - absl::Minutes(20);
  EXPECT_EQ(SicknessOf(node, kHealthNow), "");
  node.lifted_time = kHealthNow - absl::Minutes(40);
  EXPECT_NE(SicknessOf(node, kHealthNow), "");
}

TEST(SicknessOf, ANewBootMendsDevicesAndDisksButNoCrashes) {
  NodeRecord node = Node("n", ThreeJobs());
  node.boot_time = kHealthNow - absl::Minutes(20);
  EXPECT_EQ(SicknessOf(node, kHealthNow), "");
  for (NodeFailure& failure : node.failures) failure.category = "LOST";
  EXPECT_NE(SicknessOf(node, kHealthNow), "");
}

std::vector<std::string> Cordoned(const std::vector<NodeRecord>& nodes) {
  std::vector<std::string> names;
  std::vector<const NodeRecord*> all;
  for (const NodeRecord& node : nodes) all.push_back(&node);
  for (const NodeCordon& cordon : NodesToCordon(all, kHealthNow)) names.push_back(cordon.name);
  return names;
}

TEST(NodesToCordon, AreAQuarterOfThoseThatAreReachableAtMost) {
  std::vector<NodeRecord> nodes;
  for (int i = 0; i < 3; ++i) nodes.push_back(Node(absl::StrCat("n", i), ThreeJobs()));
  EXPECT_EQ(Cordoned(nodes), std::vector<std::string>{}) << "a quarter of three is none";
  nodes.push_back(Node("n3"));
  nodes.back().reachable = false;
  EXPECT_EQ(Cordoned(nodes), std::vector<std::string>{});
  nodes.back().reachable = true;
  EXPECT_EQ(Cordoned(nodes), std::vector<std::string>{"n0"});
  nodes[2].cordon = "since yesterday";
  EXPECT_EQ(Cordoned(nodes), std::vector<std::string>{});
  for (int i = 4; i < 8; ++i) nodes.push_back(Node(absl::StrCat("n", i)));
  EXPECT_EQ(Cordoned(nodes), std::vector<std::string>{"n0"});
}

TEST(NodesToCordon, NeverIncludeTheLastThatTakesWork) {
  std::vector<NodeRecord> nodes = {Node("n0", ThreeJobs()), Node("n1"), Node("n2"), Node("n3")};
  nodes[1].draining = true;
  nodes[2].report.disk_free_bytes = 0;
  nodes[3].lease_end = kHealthNow;
  EXPECT_EQ(Cordoned(nodes), std::vector<std::string>{});
  nodes[1].draining = false;
  EXPECT_EQ(Cordoned(nodes), std::vector<std::string>{"n0"});
}

TEST(NewFailures, AreThoseThatMayBeTheNodesFault) {
  JobRecord job;
  job.uid = "u";
  job.job_id = "job";
  const auto count = [&](RankOutcome outcome, const char* category) {
    AttemptRecord before{.job_uid = "u", .attempt = 2, .ranks = {{.id = {"u", 2, 0}, .node = "n"}}};
    AttemptRecord after = before;
    after.ranks[0].outcome = outcome;
    if (category[0] != 0) after.ranks[0].failure = FailureRecord{.category = category};
    EXPECT_TRUE(NewFailures(job, after, after, kHealthNow).empty()) << "known before";
    return NewFailures(job, before, after, kHealthNow).size();
  };
  for (const char* category : {"DEVICE", "STORAGE", "START"}) {
    EXPECT_EQ(count(RankOutcome::kFailed, category), 1u) << category;
  }
  for (const char* category : {"USER", "NUMERIC", "OUT_OF_MEMORY", "INTERNAL", "LOST"}) {
    EXPECT_EQ(count(RankOutcome::kFailed, category), 0u) << category;
  }
  EXPECT_EQ(count(RankOutcome::kLost, "LOST"), 1u);
  EXPECT_EQ(count(RankOutcome::kLost, ""), 0u) << "it fenced itself: the server was away, perhaps";
  EXPECT_EQ(count(RankOutcome::kKilled, ""), 0u);
}

TEST(CordonReason, NamesTheFolderAndWhatIsFreeThere) {
  NodeRecord node = Node("n");
  node.report.disk_free_bytes = int64_t{63} << 20;
  node.report.state_dir = "/var/lib/yard";
  const std::string why = CordonReason(node);
  EXPECT_TRUE(absl::StrContains(why, "63.0 MiB are free in /var/lib/yard")) << why;
  EXPECT_TRUE(absl::StrContains(why, "64.0 MiB are needed")) << why;
  node.report.disk_free_bytes = int64_t{64} << 20;
  EXPECT_EQ(CordonReason(node), "");
  node.cordon = "sick";
  EXPECT_EQ(CordonReason(node), "sick");
}

// Else it would never take work, however empty.
TEST(CordonReason, ASmallDiskIsFullBelowAQuarter) {
  NodeRecord node = Node("n");
  node.report.disk_total_bytes = int64_t{32} << 20;
  node.report.disk_free_bytes = int64_t{8} << 20;
  EXPECT_EQ(CordonReason(node), "");
  *node.report.disk_free_bytes -= 1;
  EXPECT_TRUE(absl::StrContains(CordonReason(node), "8.0 MiB are needed")) << CordonReason(node);
}

TEST(DescribeReport, SaysWhatTheAgentTold) {
  NodeReport report;
  EXPECT_EQ(DescribeReport(report), "nothing about itself");
  report.disk_free_bytes = 12;
  report.memory_free_bytes = int64_t{3} << 30;
  report.failed_starts = 2;
  EXPECT_EQ(DescribeReport(report), "12 B of disk and 3.0 GiB of memory are free; 2 starts failed");
}

}  // namespace
}  // namespace trainyard
