#pragma once

// The store as its clients see it. MemoryStores runs one transaction after the other and answers
// each; PostgreSQL promises less, and this shows what it does not promise: between two transactions
// of one client those of others run, so that what was read may be old when something is decided on
// it; a transaction fails (a deadlock, a serialization failure, a lock that was not free, a
// timeout); its answer is lost, whether it was committed or not; it is run a second time because
// nobody knows whether the first was committed.
//
// What two transactions do to each other while both are open cannot be shown here: tests/contention
// shows it on PostgreSQL.

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "storage/job_store.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

// How often something goes wrong, and the source of randomness; shared by all clients of a yard's
// store.
struct SimFaults {
  std::mt19937_64& random;
  int fail = 0;   // of 1,000 transactions so many fail, and as many are committed but not answered
  int again = 0;  // of 1,000 transactions so many are run twice
  int interleave = 0;  // of 1,000 points before or after a transaction, others run at so many
  bool off = false;
};

// What a client of the store did, for invariants.
class SimStoreObserver {
 public:
  virtual ~SimStoreObserver() = default;
  virtual void OnRenewed(const std::string& node) = 0;  // the renewal was committed
  virtual void OnLed(int64_t epoch) = 0;                // Lead was answered
  virtual void OnSnapshot(const SchedulerSnapshot& snapshot) = 0;
  virtual void BeforeApply(const Decisions& decisions) = 0;
  virtual void AfterApply(const Decisions& decisions) = 0;
  virtual void OnApplied() = 0;  // Apply was answered
};

// One client, such as a replica of the server. For one thread.
class SimStore : public JobStore, public FleetStore, public SchedulerStore {
 public:
  // `meanwhile` lets others do something. It may be called from within every call.
  SimStore(MemoryStores& stores, SimFaults& faults, SimStoreObserver& observer,
           std::function<void()> meanwhile)
      : jobs_(stores.jobs()),
        fleet_(stores.fleet()),
        scheduler_(stores.scheduler()),
        faults_(faults),
        observer_(observer),
        meanwhile_(std::move(meanwhile)) {}

  // JobStore
  absl::StatusOr<JobRecord> Submit(const JobRecord& job) override;
  std::vector<absl::StatusOr<JobRecord>> SubmitMany(const std::vector<JobRecord>& jobs) override;
  absl::StatusOr<JobRecord> Get(const JobName& name) override;
  absl::StatusOr<JobPage> List(const std::string& project, const std::vector<JobFilter>& filter,
                               int page_size, const std::string& cursor) override;
  absl::StatusOr<JobRecord> Cancel(const JobName& name, int64_t version,
                                   const Reason& reason) override;
  absl::StatusOr<JobRecord> Pause(const JobName& name, int64_t version, const Reason& reason,
                                  absl::Duration grace) override;
  absl::StatusOr<JobRecord> Resume(const JobName& name, int64_t version,
                                   const Reason& reason) override;
  absl::StatusOr<JobRecord> SetSlotRange(const JobName& name, int64_t version,
                                         const SlotRange& range, const std::string& by) override;
  absl::Status Delete(const JobName& name, int64_t version) override;
  absl::StatusOr<std::vector<FeedRecord>> ReadFeed(const std::string& job_uid, int64_t after,
                                                   int limit) override;
  absl::StatusOr<std::vector<std::vector<FeedRecord>>> ReadFeeds(
      const std::vector<FeedPosition>& positions, int limit) override;
  absl::StatusOr<std::vector<FeedState>> ReadFeedStates(
      const std::vector<std::string>& job_uids) override;
  absl::StatusOr<std::vector<MetricRow>> ReadMetrics(const std::string& job_uid,
                                                     const MetricQuery& query) override;
  absl::StatusOr<std::vector<MetricBucket>> ReadMetricBuckets(
      const std::string& job_uid, const MetricBucketQuery& query) override;
  absl::StatusOr<std::vector<CheckpointRecord>> ListCheckpoints(
      const std::string& job_uid) override;

  // FleetStore
  absl::StatusOr<NodeRecord> RegisterNode(const NodeRecord& node, absl::Duration lease) override;
  std::vector<absl::Status> RenewLeases(const std::vector<LeaseRenewal>& renewals) override;
  absl::StatusOr<std::vector<DesiredRank>> ReadDesired(const AgentIdentity& agent) override;
  absl::StatusOr<AppendResult> AppendEvents(const RankEvents& report) override;
  std::vector<absl::StatusOr<AppendResult>> AppendGroup(
      const std::vector<RankEvents>& group) override;
  absl::StatusOr<bool> ReportAbsent(const AgentIdentity& agent,
                                    const std::vector<RankId>& ranks) override;
  absl::StatusOr<int> ConfirmEmpty(const std::string& node) override;
  absl::StatusOr<NodeRanks> ReadRanks(const std::string& node) override;
  absl::StatusOr<std::vector<LeftState>> FindUnneeded(
      const std::vector<LeftState>& states) override;
  absl::StatusOr<std::vector<NodeRecord>> ListNodes() override;
  absl::StatusOr<NodeRecord> SetDraining(const std::string& node, bool draining) override;
  absl::Status SetLeaving(const AgentIdentity& agent, absl::Duration grace) override;
  absl::StatusOr<RankRecord> FindRank(const std::string& job_uid, int64_t attempt,
                                      int rank) override;
  absl::StatusOr<AttemptRecord> FindAttempt(const std::string& job_uid, int64_t attempt) override;
  absl::StatusOr<std::vector<AttemptRecord>> ListAttempts(const std::string& job_uid) override;

  // SchedulerStore
  absl::StatusOr<LeaderRecord> ReadLeader() override;
  absl::StatusOr<LeaderLease> Lead(const std::string& holder, absl::Duration lease,
                                   std::optional<int64_t> stale_beat) override;
  absl::Status StandDown(const std::string& holder) override;
  absl::StatusOr<SchedulerSnapshot> ReadSnapshot() override;
  absl::StatusOr<SnapshotChanges> ReadChanges(const ChangePosition& since, bool leases) override;
  absl::StatusOr<int> Apply(int64_t leader_epoch, const Decisions& decisions) override;

 private:
  enum class Fate { kAnswered, kFailed, kUnanswered, kRunTwice };
  Fate Draw();
  bool Chance(int of_a_thousand) {
    return !faults_.off && static_cast<int>(faults_.random() % 1000) < of_a_thousand;
  }
  void Interleave() {
    if (Chance(faults_.interleave)) meanwhile_();
  }
  // One transaction. `call` gets the number of the run, from 0.
  template <typename Call>
  auto Transact(const Call& call) -> decltype(call(0));

  JobStore& jobs_;
  FleetStore& fleet_;
  SchedulerStore& scheduler_;
  SimFaults& faults_;
  SimStoreObserver& observer_;
  const std::function<void()> meanwhile_;
};

}  // namespace trainyard
