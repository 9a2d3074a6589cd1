#include "tests/simulation/sim_store.h"

#include <utility>

#include "storage/base/status.h"

namespace trainyard {
namespace {

absl::Status Failed() { return absl::UnavailableError("simulated: the transaction failed"); }
absl::Status Unanswered() { return absl::UnavailableError("simulated: the answer was lost"); }

}  // namespace

SimStore::Fate SimStore::Draw() {
  if (faults_.off) return Fate::kAnswered;
  const int drawn = static_cast<int>(faults_.random() % 1000);
  if (drawn < faults_.fail) return Fate::kFailed;
  if (drawn < 2 * faults_.fail) return Fate::kUnanswered;
  if (drawn < 2 * faults_.fail + faults_.again) return Fate::kRunTwice;
  return Fate::kAnswered;
}

template <typename Call>
auto SimStore::Transact(const Call& call) -> decltype(call(0)) {
  Interleave();
  const Fate fate = Draw();
  if (fate == Fate::kFailed) return Failed();
  auto answer = call(0);
  if (fate == Fate::kRunTwice) answer = call(1);
  Interleave();
  if (fate == Fate::kUnanswered) return Unanswered();
  return answer;
}

// --- jobs -------------------------------------------------------------------------------------

absl::StatusOr<JobRecord> SimStore::Submit(const JobRecord& job) {
  return Transact([&](int) { return jobs_.Submit(job); });
}

// Each job in a transaction of its own, as a store may do.
std::vector<absl::StatusOr<JobRecord>> SimStore::SubmitMany(const std::vector<JobRecord>& jobs) {
  std::vector<absl::StatusOr<JobRecord>> answers;
  for (const JobRecord& job : jobs) answers.push_back(Submit(job));
  return answers;
}

absl::StatusOr<JobRecord> SimStore::Get(const JobName& name) {
  return Transact([&](int) { return jobs_.Get(name); });
}

absl::StatusOr<JobPage> SimStore::List(const std::string& project,
                                       const std::vector<JobFilter>& filter, int page_size,
                                       const std::string& cursor) {
  return Transact([&](int) { return jobs_.List(project, filter, page_size, cursor); });
}

absl::StatusOr<JobRecord> SimStore::Cancel(const JobName& name, int64_t version,
                                           const Reason& reason) {
  return Transact([&](int) { return jobs_.Cancel(name, version, reason); });
}

absl::StatusOr<JobRecord> SimStore::Pause(const JobName& name, int64_t version,
                                          const Reason& reason, absl::Duration grace) {
  return Transact([&](int) { return jobs_.Pause(name, version, reason, grace); });
}

absl::StatusOr<JobRecord> SimStore::Resume(const JobName& name, int64_t version,
                                           const Reason& reason) {
  return Transact([&](int) { return jobs_.Resume(name, version, reason); });
}

absl::StatusOr<JobRecord> SimStore::SetSlotRange(const JobName& name, int64_t version,
                                                 const SlotRange& range, const std::string& by) {
  return Transact([&](int) { return jobs_.SetSlotRange(name, version, range, by); });
}

absl::Status SimStore::Delete(const JobName& name, int64_t version) {
  return Transact([&](int) { return jobs_.Delete(name, version); });
}

absl::StatusOr<std::vector<FeedRecord>> SimStore::ReadFeed(const std::string& job_uid,
                                                           int64_t after, int limit) {
  return Transact([&](int) { return jobs_.ReadFeed(job_uid, after, limit); });
}

absl::StatusOr<std::vector<std::vector<FeedRecord>>> SimStore::ReadFeeds(
    const std::vector<FeedPosition>& positions, int limit) {
  return Transact([&](int) { return jobs_.ReadFeeds(positions, limit); });
}

absl::StatusOr<std::vector<FeedState>> SimStore::ReadFeedStates(
    const std::vector<std::string>& job_uids) {
  return Transact([&](int) { return jobs_.ReadFeedStates(job_uids); });
}

absl::StatusOr<std::vector<MetricRow>> SimStore::ReadMetrics(const std::string& job_uid,
                                                             const MetricQuery& query) {
  return Transact([&](int) { return jobs_.ReadMetrics(job_uid, query); });
}

absl::StatusOr<std::vector<MetricBucket>> SimStore::ReadMetricBuckets(
    const std::string& job_uid, const MetricBucketQuery& query) {
  return Transact([&](int) { return jobs_.ReadMetricBuckets(job_uid, query); });
}

absl::StatusOr<std::vector<CheckpointRecord>> SimStore::ListCheckpoints(
    const std::string& job_uid) {
  return Transact([&](int) { return jobs_.ListCheckpoints(job_uid); });
}

// --- the fleet --------------------------------------------------------------------------------

absl::StatusOr<NodeRecord> SimStore::RegisterNode(const NodeRecord& node, absl::Duration lease) {
  return Transact([&](int) {
    absl::StatusOr<NodeRecord> registered = fleet_.RegisterNode(node, lease);
    if (registered.ok()) observer_.OnRenewed(node.name);
    return registered;
  });
}

// One statement renews all; a lease whose row somebody else has locked is skipped.
std::vector<absl::Status> SimStore::RenewLeases(const std::vector<LeaseRenewal>& renewals) {
  Interleave();
  const Fate fate = Draw();
  if (fate == Fate::kFailed) return std::vector<absl::Status>(renewals.size(), Failed());
  std::vector<absl::Status> answers;
  for (const LeaseRenewal& renewal : renewals) {
    if (Chance(faults_.fail)) {
      answers.push_back(absl::UnavailableError("simulated: somebody changes the lease"));
      continue;
    }
    answers.push_back(fleet_.RenewLeases({renewal})[0]);
    if (fate == Fate::kRunTwice) answers.back() = fleet_.RenewLeases({renewal})[0];
    if (answers.back().ok()) observer_.OnRenewed(renewal.node);
  }
  Interleave();
  if (fate == Fate::kUnanswered) return std::vector<absl::Status>(renewals.size(), Unanswered());
  return answers;
}

absl::StatusOr<std::vector<DesiredRank>> SimStore::ReadDesired(const AgentIdentity& agent) {
  return Transact([&](int) { return fleet_.ReadDesired(agent); });
}

// The second run finds what the first one stored, and says so, as PostgresFleetStore does.
absl::StatusOr<AppendResult> SimStore::AppendEvents(const RankEvents& report) {
  return AppendGroup({report})[0];
}

std::vector<absl::StatusOr<AppendResult>> SimStore::AppendGroup(
    const std::vector<RankEvents>& group) {
  using Answers = std::vector<absl::StatusOr<AppendResult>>;
  Interleave();
  const Fate fate = Draw();
  if (fate == Fate::kFailed) return Answers(group.size(), Failed());
  Answers answers = fleet_.AppendGroup(group);
  if (fate == Fate::kRunTwice) {
    const Answers second = fleet_.AppendGroup(group);
    for (size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].ok() && !answers[i]->fenced) {
        answers[i]->job_changed = true;
      } else {
        answers[i] = second[i];
      }
    }
  }
  Interleave();
  if (fate == Fate::kUnanswered) return Answers(group.size(), Unanswered());
  return answers;
}

absl::StatusOr<bool> SimStore::ReportAbsent(const AgentIdentity& agent,
                                            const std::vector<RankId>& ranks) {
  return Transact([&](int run) -> absl::StatusOr<bool> {
    TY_ASSIGN_OR_RETURN(const bool dropped, fleet_.ReportAbsent(agent, ranks));
    return dropped || run > 0;
  });
}

absl::StatusOr<int> SimStore::ConfirmEmpty(const std::string& node) {
  return Transact([&](int) { return fleet_.ConfirmEmpty(node); });
}

absl::StatusOr<NodeRanks> SimStore::ReadRanks(const std::string& node) {
  return Transact([&](int) { return fleet_.ReadRanks(node); });
}

absl::StatusOr<std::vector<LeftState>> SimStore::FindUnneeded(
    const std::vector<LeftState>& states) {
  return Transact([&](int) { return fleet_.FindUnneeded(states); });
}

absl::StatusOr<std::vector<NodeRecord>> SimStore::ListNodes() {
  return Transact([&](int) { return fleet_.ListNodes(); });
}

absl::Status SimStore::SetLeaving(const AgentIdentity& agent, absl::Duration grace) {
  return Transact([&](int) { return fleet_.SetLeaving(agent, grace); });
}

absl::StatusOr<NodeRecord> SimStore::SetDraining(const std::string& node, bool draining) {
  return Transact([&](int) { return fleet_.SetDraining(node, draining); });
}

absl::StatusOr<RankRecord> SimStore::FindRank(const std::string& job_uid, int64_t attempt,
                                              int rank) {
  return Transact([&](int) { return fleet_.FindRank(job_uid, attempt, rank); });
}

absl::StatusOr<AttemptRecord> SimStore::FindAttempt(const std::string& job_uid, int64_t attempt) {
  return Transact([&](int) { return fleet_.FindAttempt(job_uid, attempt); });
}

absl::StatusOr<std::vector<AttemptRecord>> SimStore::ListAttempts(const std::string& job_uid) {
  return Transact([&](int) { return fleet_.ListAttempts(job_uid); });
}

// --- the scheduler ----------------------------------------------------------------------------

absl::StatusOr<LeaderRecord> SimStore::ReadLeader() {
  return Transact([&](int) { return scheduler_.ReadLeader(); });
}

absl::StatusOr<LeaderLease> SimStore::Lead(const std::string& holder, absl::Duration lease,
                                           std::optional<int64_t> stale_beat) {
  absl::StatusOr<LeaderLease> led =
      Transact([&](int) { return scheduler_.Lead(holder, lease, stale_beat); });
  if (led.ok()) observer_.OnLed(led->epoch);
  return led;
}

absl::Status SimStore::StandDown(const std::string& holder) {
  return Transact([&](int) { return scheduler_.StandDown(holder); });
}

absl::StatusOr<SchedulerSnapshot> SimStore::ReadSnapshot() {
  return Transact([&](int) { return scheduler_.ReadSnapshot(); });
}

absl::StatusOr<SnapshotChanges> SimStore::ReadChanges(const ChangePosition& since, bool leases) {
  SchedulerSnapshot whole;  // at the same moment
  absl::StatusOr<SnapshotChanges> read = Transact([&](int) -> absl::StatusOr<SnapshotChanges> {
    TY_ASSIGN_OR_RETURN(whole, scheduler_.ReadSnapshot());
    return scheduler_.ReadChanges(since, leases);
  });
  if (read.ok()) observer_.OnSnapshot(whole);
  return read;
}

absl::StatusOr<int> SimStore::Apply(int64_t leader_epoch, const Decisions& decisions) {
  absl::StatusOr<int> applied = Transact([&](int run) -> absl::StatusOr<int> {
    observer_.BeforeApply(decisions);
    absl::StatusOr<int> changed = scheduler_.Apply(leader_epoch, decisions);
    if (changed.ok() && *changed == 0 && run > 0) changed = 1;
    observer_.AfterApply(decisions);
    return changed;
  });
  if (applied.ok()) observer_.OnApplied();
  return applied;
}

}  // namespace trainyard
