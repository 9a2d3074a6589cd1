#pragma once

// One suite for every implementation of the stores: TEST_P(StoreSuite, …) runs over memory and
// PostgreSQL.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/records/reason_codes.h"
#include "storage/stores.h"
#include "tests/conformance/postgres_fixture.h"

#define EXPECT_OK(expr) EXPECT_EQ((expr), absl::OkStatus())
#define ASSERT_OK(expr) ASSERT_EQ((expr), absl::OkStatus())

namespace trainyard::testing {

// Why somebody acts on a job in these tests.
inline const Reason kUser{"TEST", "a test asked"};

// An implementation under test, empty at first.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual Stores& stores() = 0;
  // Lets `duration` pass for leases, deadlines and backoff, without waiting for it.
  virtual void Pass(absl::Duration duration) = 0;
};
std::unique_ptr<Backend> MakeBackend(const std::string& kind);

// The cluster of this test program, started at first use.
PostgresFixture& SharedPostgres();
// A new database with all migrations applied; dropped with its last user.
std::string NewDatabase();

// What psql prints; a failure of the test, and "", when it fails.
std::string QueryOrDie(const std::string& database, const std::string& sql);
std::unique_ptr<Stores> OpenOrDie(const std::string& conninfo);
// A job of project "default" whose name is its request id, too.
JobRecord Named(const std::string& id);

// RenewLeases for one lease.
absl::Status RenewLease(FleetStore& fleet, const std::string& node, const std::string& incarnation,
                        absl::Duration lease, const NodeReport& report);
// The ids of ReadRanks.
absl::StatusOr<std::vector<RankId>> ListRanks(FleetStore& fleet, const std::string& node);

// Events of one rank, numbered by themselves.
class EventWriter {
 public:
  std::vector<RankEventRecord> Take() { return std::exchange(events_, {}); }
  EventWriter& Add(decltype(RankEventRecord::what) what) {
    events_.push_back(
        {.sequence = sequence_ + 1, .time = absl::UnixEpoch(), .what = std::move(what)});
    sequence_ = LastSequenceOf(events_.back());
    return *this;
  }
  EventWriter& Restored(int64_t step) { return Add(RankRestored{step}); }
  EventWriter& Train(int64_t step, double loss = 1.0) {
    return Add(MetricRecord{step, MetricSplit::kTrain, {{"loss", loss}}});
  }
  EventWriter& Checkpoint(int64_t step, std::vector<std::string> removed = {});
  EventWriter& Finished(int64_t step) { return Add(RankFinished{false, step}); }
  EventWriter& Suspended(int64_t step) { return Add(RankFinished{true, step}); }
  EventWriter& Keeps(int64_t step) { return Add(RankFinished{true, step, "", true}); }
  EventWriter& Fails(bool retryable, const std::string& category = "DEVICE") {
    return Add(FailureRecord{category, "it broke", retryable});
  }
  EventWriter& Exited(int code = 0, int signal = 0) {
    return Add(RankExited{code, signal, false, ""});
  }
  EventWriter& Vanished() { return Add(RankExited{0, 0, true, ""}); }

 private:
  int64_t sequence_ = 0;
  std::vector<RankEventRecord> events_;
};

class StoreSuite : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { backend_ = MakeBackend(GetParam()); }

  JobStore& jobs() { return backend_->stores().jobs(); }
  FleetStore& fleet() { return backend_->stores().fleet(); }
  SchedulerStore& scheduler() { return backend_->stores().scheduler(); }

  static JobRecord NewJob(const std::string& job_id, int slots = 1);
  JobRecord Submit(const std::string& job_id, int slots = 1);
  JobRecord Get(const std::string& job_id);
  void Register(const std::string& node, int slots = 4, const std::string& incarnation = "i1");
  // Returns the ranks that rejoined.
  std::vector<RunningRank> RegisterAs(const AgentIdentity& agent, int slots = 4,
                                      const std::vector<RunningRank>& running = {});
  LostNode Stands(const std::string& node);  // its lease, as it is
  int64_t Lead(const std::string& holder = "leader");

  // Applies one placement of one slot per node: rank i on nodes[i], slot slots[i] or 0.
  int Place(const JobRecord& job, const std::vector<std::string>& nodes,
            const std::vector<int>& slots = {});
  // Places the job on fresh nodes' slots and lets every rank report Restored. Returns it RUNNING.
  JobRecord Run(const std::string& job_id, const std::vector<std::string>& nodes);
  AppendResult Append(const JobRecord& job, int rank, const std::string& node, EventWriter& events);
  void ExpectGaplessFeed(const std::string& uid);

  std::vector<StateChangeRecord> StateChanges(const std::string& uid);

  std::unique_ptr<Backend> backend_;
  std::map<RankId, EventWriter> writers_;
  EventWriter& Writer(const JobRecord& job, int rank = 0) {
    return writers_[RankId{job.uid, job.attempt, rank}];
  }
};

}  // namespace trainyard::testing
