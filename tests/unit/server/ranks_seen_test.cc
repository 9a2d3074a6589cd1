// What a user sees of the ranks of a gang: where they run, and what they measured.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>

#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Pair;

// A gang of two ranks on two agents.
class RanksSeenTest : public ::testing::Test {
 protected:
  RanksSeenTest() : first_(rig_), second_(rig_) {
    first_.Register("n1", 1);
    first_.Welcomed();
    second_.Register("n2", 1);
    second_.Welcomed();
  }

  void Place() {
    v1::Job job = SmallJob("gang");
    job.mutable_spec()->mutable_resources()->set_min_slots(2);
    job.mutable_spec()->mutable_resources()->set_max_slots(2);
    job.mutable_spec()->mutable_resources()->set_device(v1::Resources::CPU);
    name_ = rig_.Submit(job).name();
    for (ScriptedAgent* agent : {&first_, &second_}) {
      const v1::RankKey key = agent->NextDesired(1).assignments(0).key();
      keys_[key.rank()] = key;
      agents_[key.rank()] = agent;
    }
  }

  void Report(int rank, const std::vector<v1::RankEvent>& events) {
    agents_[rank]->SendEvents(keys_[rank], events);
    EXPECT_EQ(agents_[rank]->NextAck().sequence(), events.back().sequence());
  }

  grpc::Status GetGang(v1::Gang& gang, int64_t attempt = 0, const std::string& name = "") {
    v1::GetGangRequest request;
    request.set_name(name.empty() ? name_ : name);
    request.set_attempt(attempt);
    return rig_.jobs().GetGang(Rig::Context().get(), request, &gang);
  }

  v1::QueryMetricsResponse Query(bool ranks) {
    v1::QueryMetricsRequest request;
    request.set_job(name_);
    request.set_ranks(ranks);
    v1::QueryMetricsResponse response;
    const grpc::Status status =
        rig_.metrics().QueryMetrics(Rig::Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  Rig rig_;
  ScriptedAgent first_, second_;
  std::string name_;
  std::map<int, v1::RankKey> keys_;
  std::map<int, ScriptedAgent*> agents_;
};

std::map<std::string, double> ValuesOf(const v1::AttemptMetricPoint& point) {
  return {point.point().values().begin(), point.point().values().end()};
}

TEST_F(RanksSeenTest, TheGangIsShownRankByRank) {
  Place();
  EventScript leader, other;
  Report(0, {leader.Started(), leader.Restored(0)});
  v1::Gang gang;
  ASSERT_TRUE(GetGang(gang).ok());
  EXPECT_EQ(gang.attempt(), 1);
  ASSERT_EQ(gang.ranks_size(), 2);
  EXPECT_EQ(gang.ranks(0).state(), v1::Gang::Rank::RUNNING);
  EXPECT_EQ(gang.ranks(1).state(), v1::Gang::Rank::ASSIGNED);
  Report(1, {other.Started(), other.Restored(0)});
  Report(0, {leader.Metrics(2, 1.0)});
  ASSERT_TRUE(GetGang(gang).ok());
  const absl::Time now = absl::Now();
  for (const v1::Gang::Rank& rank : gang.ranks()) {
    EXPECT_EQ(rank.node(), agents_[rank.rank()] == &first_ ? "nodes/n1" : "nodes/n2");
    EXPECT_THAT(rank.slots(), ElementsAre(0));
    EXPECT_EQ(rank.step(), 2);
    EXPECT_EQ(rank.outcome(), "");
    const absl::Time heard = absl::FromUnixSeconds(rank.last_heard_time().seconds());
    EXPECT_LT(heard, now + absl::Seconds(1)) << "not when the lease ends";
    EXPECT_GT(heard, now - absl::Minutes(1));
  }
  v1::RankEvent failure = other.Started();
  failure.mutable_failure()->set_category(v1::Failure::DEVICE);
  failure.mutable_failure()->set_message("the fan fell off");
  Report(1, {failure, other.Exited(71)});
  ASSERT_TRUE(GetGang(gang, 1).ok());
  EXPECT_EQ(gang.ranks(1).state(), v1::Gang::Rank::GONE);
  EXPECT_EQ(gang.ranks(1).outcome(), "FAILED");
  EXPECT_EQ(gang.ranks(1).failure(), "the fan fell off");
  EXPECT_EQ(gang.ranks(1).step(), 0);
}

TEST_F(RanksSeenTest, WhatIsNotThereIsSaid) {
  v1::Gang gang;
  const std::string waiting =
      rig_.Submit([] {
            v1::Job job = SmallJob("waits");
            job.mutable_spec()->mutable_resources()->set_device(v1::Resources::CPU);
            return job;
          }())
          .name();
  EXPECT_EQ(GetGang(gang, 7, waiting).error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(GetGang(gang, -1, waiting).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(GetGang(gang, 0, "projects/default/jobs/none").error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(GetGang(gang, 0, "none").error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(RanksSeenTest, MetricsOfRanksAreReadApartFromTheOthers) {
  Place();
  EventScript script;
  v1::RankEvent point = script.Started();
  point = EventScript(3).Metrics(1, 2.5);
  auto& values = *point.mutable_metrics()->mutable_values();
  values["ranks.count"] = 2;
  values["ranks.slowest"] = 1;
  values["rank.1.wait_ms"] = 0.5;
  Report(0, {EventScript(1).Started(), EventScript(2).Restored(0), point,
             EventScript(4).Metrics(2, 2.25)});
  v1::QueryMetricsResponse response = Query(false);
  ASSERT_EQ(response.points_size(), 2);
  EXPECT_THAT(ValuesOf(response.points(0)), ElementsAre(Pair("loss", 2.5)));
  response = Query(true);
  ASSERT_EQ(response.points_size(), 1) << "step 2 tells nothing of ranks";
  EXPECT_THAT(
      ValuesOf(response.points(0)),
      ElementsAre(Pair("rank.1.wait_ms", 0.5), Pair("ranks.count", 2), Pair("ranks.slowest", 1)));
  v1::QueryMetricsRequest request;
  request.set_job(name_);
  request.set_ranks(true);
  request.set_buckets(10);
  EXPECT_EQ(rig_.metrics().QueryMetrics(Rig::Context().get(), request, &response).error_code(),
            grpc::INVALID_ARGUMENT);
}

TEST_F(RanksSeenTest, HostileValuesOfRanksAreRefusedAndCounted) {
  Place();
  v1::RankEvent point = EventScript(3).Metrics(1, 2.5);
  auto& values = *point.mutable_metrics()->mutable_values();
  values["ranks.count"] = 1e300;
  values["ranks.slowest"] = 1024;
  values["ranks.compute_ms.max"] = std::numeric_limits<double>::quiet_NaN();
  values["rank.2.compute_ms"] = 1;
  values["rank.1.compute_ms"] = 7;
  v1::RankEvent run;
  run.set_sequence(4);
  v1::MetricColumns& columns = *run.mutable_columns();
  columns.set_split(v1::MetricPoint::TRAIN);
  columns.add_steps(2);
  columns.add_time_deltas_us(0);
  for (const auto& [name, value] :
       {std::pair("loss", 2.0), std::pair("rank.9.wait_ms", 1.0), std::pair("ranks.count", 2.0)}) {
    columns.add_columns()->set_name(name);
    columns.mutable_columns()->rbegin()->add_values(value);
  }
  agents_[0]->SendEvents(keys_[0],
                         {EventScript(1).Started(), EventScript(2).Restored(0), point, run});
  EXPECT_EQ(agents_[0]->NextAck().sequence(), 4);
  const v1::QueryMetricsResponse response = Query(true);
  ASSERT_EQ(response.points_size(), 2);
  EXPECT_THAT(ValuesOf(response.points(0)),
              ElementsAre(Pair("rank.1.compute_ms", 7), Pair("ranks.refused", 4)));
  EXPECT_THAT(ValuesOf(response.points(1)),
              ElementsAre(Pair("ranks.count", 2), Pair("ranks.refused", 1)));
  EXPECT_THAT(ValuesOf(Query(false).points(0)), ElementsAre(Key("loss")));
}

TEST_F(RanksSeenTest, OnlyRankZeroSpeaksForTheGang) {
  Place();
  v1::RankEvent point = EventScript(3).Metrics(1, 2.5);
  (*point.mutable_metrics()->mutable_values())["ranks.count"] = 2;
  agents_[1]->SendEvents(keys_[1], {EventScript(1).Started(), EventScript(2).Restored(0), point});
  EXPECT_TRUE(agents_[1]->NextAck().fenced());
  EXPECT_EQ(Query(true).points_size(), 0);
  v1::Gang gang;
  ASSERT_TRUE(GetGang(gang).ok());
  EXPECT_THAT(gang.ranks(1).failure(), HasSubstr("rank 1 reports metrics; only rank 0 may"));
}

}  // namespace
}  // namespace trainyard
