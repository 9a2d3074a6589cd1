#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/clock.h"
#include "storage/local_wakeups.h"
#include "storage/records/change.h"
#include "storage/stores.h"

namespace trainyard {

// The fake for tests of the server's rooms: everything in memory, one lock, time from `clock`. It
// passes the conformance suite that PostgreSQL passes. Thread-safe.
class MemoryStores : public Stores,
                     JobStore,
                     FleetStore,
                     SchedulerStore,
                     TokenStore,
                     ProjectStore,
                     ProvisionStore,
                     AuditStore,
                     AuthorityStore,
                     NodeKeyStore,
                     RetentionStore {
 public:
  explicit MemoryStores(Clock& clock) : clock_(clock) {}

  JobStore& jobs() override { return *this; }
  FleetStore& fleet() override { return *this; }
  SchedulerStore& scheduler() override { return *this; }
  TokenStore& tokens() override { return *this; }
  ProjectStore& projects() override { return *this; }
  ProvisionStore& provision() override { return *this; }
  AuditStore& audit() override { return *this; }
  AuthorityStore& authority() override { return *this; }
  NodeKeyStore& node_keys() override { return *this; }
  RetentionStore& retention() override { return *this; }
  Wakeups& wakeups() override { return wakeups_; }
  absl::StatusOr<int64_t> YardEpoch() override { return 1; }
  absl::Status Probe() override { return Available(); }

  // As if the database were away: every method answers kUnavailable until it is back.
  void SetAway(bool away);

  // How often jobs, attempts or nodes were written, and how often leases were renewed: while both
  // stand still, everything is as it was read. For tests that check after every step.
  int64_t writes();
  int64_t renewals();

 private:
  struct JobEntry {
    JobRecord job;
    int64_t changed = 0;           // writes_ as it was then
    std::vector<FeedRecord> feed;  // sequence i + 1 at index i
    std::map<int64_t, AttemptRecord> attempts;
    std::map<int64_t, CheckpointRecord> checkpoints;  // by step
  };

  // JobStore
  absl::StatusOr<JobRecord> Submit(const JobRecord& job) override { return Submit(job, Now()); }
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

  // TokenStore
  absl::Status AddToken(const std::string& token_sha256, const Principal& principal) override;
  absl::StatusOr<TokenRecord> CreateToken(const std::string& token_sha256, const TokenRecord& token,
                                          absl::Duration valid_for) override;
  absl::StatusOr<std::vector<TokenRecord>> ListTokens(const std::string& project,
                                                      const std::string& after, int limit) override;
  absl::StatusOr<TokenRecord> RevokeToken(const std::string& project,
                                          const std::string& id) override;
  absl::StatusOr<Principal> FindToken(const std::string& token_sha256) override;
  absl::StatusOr<std::vector<std::string>> FindEnded(
      const std::vector<std::string>& token_sha256s) override;

  // AuditStore
  absl::Status AppendAudit(const std::vector<AuditEntry>& entries) override;
  absl::StatusOr<std::vector<AuditEntry>> ListAudit(const AuditQuery& query, int limit) override;

  // AuthorityStore
  absl::StatusOr<std::optional<AuthorityRecord>> FindAuthority() override;
  absl::StatusOr<AuthorityRecord> AddAuthority(const AuthorityRecord& record) override;

  // NodeKeyStore
  absl::StatusOr<JoinToken> AddJoinToken(const JoinToken& token, absl::Duration valid_for) override;
  absl::StatusOr<std::vector<JoinToken>> ListJoinTokens() override;
  absl::StatusOr<JoinToken> RevokeJoinToken(const std::string& id) override;
  absl::StatusOr<NodeKey> Join(const JoinWish& wish) override;
  absl::StatusOr<NodeKey> FindNodeKey(const std::string& fingerprint) override;
  absl::StatusOr<NodeKey> RevokeNode(const std::string& node, const std::string& by) override;

  // ProjectStore
  absl::StatusOr<ProjectRecord> SetProject(const ProjectChange& change) override;
  absl::StatusOr<ProjectRecord> FindProject(const std::string& name) override;
  absl::StatusOr<std::vector<ProjectRecord>> ListProjects(const std::string& after,
                                                          int limit) override;

  // ProvisionStore
  absl::StatusOr<NodeRequests> ListNodeRequests(WhichRequests which) override;
  absl::Status AddNodeRequests(int64_t leader_epoch,
                               const std::vector<NodeRequest>& requests) override;
  absl::Status UpdateNodeRequests(int64_t leader_epoch,
                                  const std::vector<NodeRequest>& requests) override;
  absl::StatusOr<std::vector<std::string>> ReleaseIdleNodes(
      int64_t leader_epoch, const std::vector<std::string>& nodes) override;
  absl::StatusOr<int> ForgetEndedNodes(int64_t leader_epoch) override;

  // RetentionStore
  absl::StatusOr<Retention> GetRetention() override;
  absl::Status SetRetention(const Retention& retention) override;
  absl::Status MakeMonthlyPartitions() override { return Available(); }
  absl::StatusOr<Aged> Age() override;

  absl::Time Now() { return ToMicroseconds(clock_.Now()); }
  absl::Status Available();
  absl::Status CheckJobLimit(const std::string& project) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<JobRecord> Submit(const JobRecord& job, absl::Time now);
  absl::StatusOr<JobEntry*> Find(const JobName& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<JobEntry*> FindUid(const std::string& uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The job, or null if it was deleted or has changed since the scheduler decided on it.
  JobEntry* FindAt(const std::string& uid, int64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The newest attempt of the job, or null when `attempt` is not that.
  AttemptRecord* NewestAttempt(JobEntry& entry, int64_t attempt);
  // Return what was added to the job's feed.
  SharedItems Write(JobEntry& entry, const JobChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellJob(const std::string& uid, SnapshotChanges& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(const std::string& uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SharedItems Write(JobEntry& entry, const AttemptChange& change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Superseded(const JobEntry& entry, int64_t attempt, int64_t step) const;
  // Drops the ranks of the node that are not over; with `only`, just those of them that should not
  // run and of which the agent can know. Returns how many jobs changed.
  int DropRanksOf(const AgentIdentity& agent, const std::set<RankId>* only, RankOutcome outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int ApplyLosses(const std::vector<LostNode>& nodes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ApplyPlacement(const Placement& placement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool SlotsFree(const Placement& placement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ApplySuspension(const Suspension& suspension) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ApplyResize(const Resize& resize) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ApplyCordon(const NodeCordon& cordon) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ApplyFailedStart(const FailedStart& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ApplyCharge(const LossCharge& charge) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ApplyEnd(const OverdueCancel& overdue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteLost(const RankRecord& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteRejoined(const RankRecord& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the lease of the agent's session holds; also of an agent that names none.
  bool InSession(const AgentIdentity& agent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static JobRecord ForUsers(const JobEntry& entry);  // with JobRecord::slots
  static bool AnyLost(const JobEntry& entry);
  static bool AnyLostBefore(const JobEntry& entry);
  int ProveLostGone(const std::string& node, const std::set<RankId>& ranks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeOverClaims(const NodeRecord& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<RunningRank> RejoinOn(const NodeRecord& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteFailures(const std::vector<FailureOnNode>& failures) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock& clock_;
  LocalWakeups wakeups_;
  absl::Mutex mu_;
  bool away_ ABSL_GUARDED_BY(mu_) = false;
  int64_t writes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t renewals_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t claims_ ABSL_GUARDED_BY(mu_) = 0;  // given out
  std::map<std::string, JobEntry> by_uid_ ABSL_GUARDED_BY(mu_);
  // Uids of deleted jobs, with writes_ as it was then.
  std::vector<std::pair<int64_t, std::string>> deleted_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, std::string>, std::string> by_name_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, std::string>, std::string> by_request_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, NodeRecord> nodes_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int64_t> node_changed_ ABSL_GUARDED_BY(mu_);  // writes_ as it was then
  std::map<std::pair<std::string, int>, RankId> held_slots_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, TokenRecord> tokens_ ABSL_GUARDED_BY(mu_);  // by digest
  bool Holds(const std::string& token_sha256) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<AuthorityRecord> authority_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, int64_t>, AuditEntry> audit_
      ABSL_GUARDED_BY(mu_);                                              // by chain and sequence
  std::map<std::string, ProjectRecord> projects_ ABSL_GUARDED_BY(mu_);   // by name
  std::map<std::string, int64_t> project_changed_ ABSL_GUARDED_BY(mu_);  // writes_ as it was then
  std::vector<JoinToken> join_tokens_ ABSL_GUARDED_BY(mu_);              // the oldest first
  std::map<std::string, NodeKey> node_keys_ ABSL_GUARDED_BY(mu_);        // by fingerprint
  NodeKey* KeyOfName(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::map<std::string, NodeRequest> node_requests_ ABSL_GUARDED_BY(mu_);  // by node
  absl::Status CheckLeads(int64_t leader_epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HoldsRanks(const std::string& node, bool or_lost) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  LeaderRecord leader_ ABSL_GUARDED_BY(mu_);
  Retention retention_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
