#include "storage/postgres/fleet_store.h"

#include <algorithm>
#include <map>
#include <pqxx/pqxx>
#include <set>
#include <utility>

#include "storage/base/status.h"
#include "storage/postgres/event_group.h"
#include "storage/postgres/metric_reads.h"
#include "storage/postgres/node_key_store.h"
#include "storage/postgres/provision_store.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"
#include "storage/postgres/writes.h"

namespace trainyard::postgres {
namespace {

// Heartbeats as columns.
struct RenewalColumns {
  std::vector<std::string> nodes, incarnations, usages, healths;
  std::vector<int64_t> leases, disk_free_bytes;

  void Add(const LeaseRenewal& renewal) {
    nodes.push_back(renewal.node);
    incarnations.push_back(renewal.incarnation);
    leases.push_back(absl::ToInt64Microseconds(renewal.lease));
    usages.push_back(UsageJson(renewal.report.usage));
    disk_free_bytes.push_back(renewal.report.disk_free_bytes.value_or(-1));
    healths.push_back(HealthJson(renewal.report));
  }

  Params Values() const {
    return Params(nodes, incarnations, leases, usages, disk_free_bytes, healths);
  }
};

// Points of the current series within the steps that `events` report.
absl::StatusOr<SeriesPoints> ReadSeriesOf(Transaction& transaction, const std::string& uid,
                                          const std::vector<RankEventRecord>& events) {
  StepRange range{.job_uid = uid};
  for (const RankEventRecord& event : events) range.Add(event);
  if (range.from > range.to) return SeriesPoints();
  TY_ASSIGN_OR_RETURN(std::vector<SeriesPoints> series, ReadSeries(transaction, {range}));
  return std::move(series[0]);
}

// Makes those of `ranks`, all of one job, GONE that the agent does not run and should not run.
// Returns whether there was any.
absl::StatusOr<bool> DropAbsent(Transaction& transaction, const AgentIdentity& agent,
                                const RanksOfJob& locked, const std::vector<RankId>& ranks) {
  const auto& [job, attempt] = locked;
  if (!attempt.has_value()) return false;
  const absl::Time now = Now(transaction);
  std::vector<int> gone;
  for (const RankRecord& rank : attempt->ranks) {
    if (rank.node != agent.node || IsOver(rank.state) || !CanProveGone(agent, rank.claim)) continue;
    if (std::find(ranks.begin(), ranks.end(), rank.id) == ranks.end()) continue;
    if (DesiredStateOf(*job, *attempt, rank, now) == DesiredRankState::kStop)
      gone.push_back(rank.id.rank);
  }
  if (gone.empty()) return false;
  TY_RETURN_IF_ERROR(WriteAttempt(transaction, *job, *attempt,
                                  DropRanks(*job, *attempt, gone, RankOutcome::kKilled, now))
                         .status());
  return true;
}

// Makes those of `ranks`, of one job and any of its attempts, GONE that are LOST. Returns how many
// there were.
absl::StatusOr<int> ProveLostGone(Transaction& transaction, const std::string& node,
                                  const RanksOfJob& locked, const std::vector<RankId>& ranks) {
  const auto& [job, attempt] = locked;
  std::vector<int64_t> attempts;
  std::vector<int> numbers;
  for (const RankId& id : ranks) {
    attempts.push_back(id.attempt);
    numbers.push_back(id.rank);
  }
  const int proven = static_cast<int>(
      transaction.RunText(kProveGone.text, Params(ranks[0].job_uid, attempts, numbers, node))
          .size());
  if (!job.has_value()) transaction.Run(kForgetRanks, Params(ranks[0].job_uid));
  if (proven == 0 || !attempt.has_value() || job->state != JobState::kCancelling) return proven;
  if (!transaction.Run(kAnyLostRank, Params(job->uid)).empty()) return proven;
  const JobChange change = EndCancelled(*job, *attempt, Now(transaction));
  if (change.changed) TY_RETURN_IF_ERROR(WriteJob(transaction, *job, change).status());
  return proven;
}

// Locks the jobs with LOST ranks on the node that its agent says still run, in the order in which
// all lock jobs.
std::vector<RanksOfJob> LockLostJobs(Transaction& transaction, const NodeRecord& node) {
  if (node.running.empty()) return {};
  std::set<std::string> uids;
  for (const pqxx::row& row : transaction.Run(kLostRanksOn, Params(node.name))) {
    const RankId id = RankIdOf(row);
    const bool runs = std::any_of(node.running.begin(), node.running.end(),
                                  [&id](const RunningRank& one) { return one.id == id; });
    if (runs) uids.insert(id.job_uid);
  }
  std::vector<RanksOfJob> jobs;
  for (const std::string& uid : uids) jobs.push_back(LockRanks(transaction, uid));
  return jobs;
}

// Lets jobs rejoin where MayRejoin allows it, and returns their ranks.
absl::StatusOr<std::vector<RunningRank>> RejoinOn(Transaction& transaction, const NodeRecord& node,
                                                  const std::vector<RanksOfJob>& jobs) {
  const AgentIdentity agent(node.name, node.uid, node.instance);
  std::vector<RunningRank> rejoined;
  for (const auto& [job, attempt] : jobs) {
    if (!attempt.has_value() || !MayRejoin(*job, *attempt, agent, node.running)) continue;
    TY_RETURN_IF_ERROR(
        WriteAttempt(transaction, *job, *attempt, RejoinRanks(*job, *attempt, Now(transaction)))
            .status());
    for (const RankRecord& rank : attempt->ranks) rejoined.push_back({rank.id, rank.claim.token});
  }
  return rejoined;
}

// Before any other lock: who revokes the key goes from there to the lease.
absl::Status CheckKey(Transaction& transaction, const NodeRecord& node) {
  if (node.key_fingerprint.empty()) {
    return CheckNameHasNoKey(FirstKey(transaction.Run(kFindKeyOfName, Params(node.name))));
  }
  const std::optional<NodeKey> key =
      FirstKey(transaction.Run(kHoldNodeKey, Params(node.key_fingerprint)));
  if (!key.has_value()) return absl::UnauthenticatedError("no node has joined with this key");
  return CheckNotRevoked(*key);
}

// Ranks by job, in the order in which all lock jobs.
std::map<std::string, std::vector<RankId>> ByJob(const std::vector<RankId>& ranks) {
  std::map<std::string, std::vector<RankId>> by_job;
  for (const RankId& rank : ranks) by_job[rank.job_uid].push_back(rank);
  return by_job;
}

}  // namespace

absl::StatusOr<NodeRecord> PostgresFleetStore::RegisterNode(const NodeRecord& node,
                                                            absl::Duration lease) {
  TY_RETURN_IF_ERROR(CheckNode(node));
  return agents_.Run("register node", [&](Transaction& transaction) -> absl::StatusOr<NodeRecord> {
    TY_RETURN_IF_ERROR(CheckKey(transaction, node));
    transaction.Run(kLockLease, Params(node.name));
    std::vector<RankId> alive;
    for (const pqxx::row& row :
         transaction.Run(kAliveRanks, Params(std::vector<std::string>{node.name}))) {
      alive.push_back(RankIdOf(row));
    }
    const pqxx::result before = transaction.Run(kReadNode, Params(node.name));
    absl::Status free;
    if (!before.empty()) free = CheckNameIsFree(NodeOf(before[0]), alive, node);
    // The lease, then jobs, then the node, as Apply locks them.
    const std::vector<RanksOfJob> lost =
        free.ok() ? LockLostJobs(transaction, node) : std::vector<RanksOfJob>();
    const bool given_up = IsGivenUp(transaction, node.name);
    const bool takes_over = !before.empty() && free.ok();
    const pqxx::result taken = transaction.Run(
        kRegisterNode, Params(node.name, node.uid, node.instance, node.address, node.agent_version,
                              MapJson(node.labels), SlotsJson(node.slots), takes_over, given_up));
    std::vector<RunningRank> rejoined;
    if (!taken.empty()) {
      transaction.Run(kRegisterLease, Params(node.name, node.incarnation, lease));
      transaction.Run(kTakeOverClaims, Params(node.name, node.uid, node.instance));
      TY_ASSIGN_OR_RETURN(rejoined, RejoinOn(transaction, node, lost));
    }
    NodeRecord holder = NodeOf(transaction.Run(kReadNode, Params(node.name))[0]);
    if (!taken.empty()) {
      holder.running = std::move(rejoined);
      return holder;
    }
    TY_RETURN_IF_ERROR(free);
    TY_RETURN_IF_ERROR(CheckNameIsFree(holder, alive, node));
    return absl::UnavailableError(
        absl::StrCat("nodes/", node.name, " was given up just now; register again"));
  });
}

std::vector<absl::Status> PostgresFleetStore::RenewLeases(
    const std::vector<LeaseRenewal>& renewals) {
  if (renewals.empty()) return {};
  RenewalColumns columns;
  for (const LeaseRenewal& renewal : renewals) columns.Add(renewal);
  std::vector<absl::Status> answers(renewals.size());
  const auto renew = [&](Transaction& transaction) -> absl::Status {
    for (size_t i = 0; i < renewals.size(); ++i)
      answers[i] = LeaseIsOver(renewals[i].node, renewals[i].incarnation);
    // One lease has a prepared plan. For many the planner must know how many they are.
    for (const pqxx::row& row : renewals.size() == 1
                                    ? transaction.Run(kRenewLeases, columns.Values())
                                    : transaction.RunText(kRenewLeases.text, columns.Values())) {
      const auto place = row["place"].as<size_t>() - 1;
      answers[place] = row["renewed"].as<bool>()
                           ? absl::OkStatus()
                           : absl::UnavailableError(absl::StrCat(
                                 "the lease of ", renewals[place].node, " is being changed"));
    }
    return absl::OkStatus();
  };
  const absl::Status status = heartbeats_.Run("renew leases", renew, Access::kStatements);
  if (status.ok()) return answers;
  if (renewals.size() == 1 || absl::IsUnavailable(status)) {
    return std::vector<absl::Status>(renewals.size(), status);
  }
  // A renewal that the database refuses must not make the others fail.
  for (size_t i = 0; i < renewals.size(); ++i) answers[i] = RenewLeases({renewals[i]})[0];
  return answers;
}

absl::StatusOr<std::vector<DesiredRank>> PostgresFleetStore::ReadDesired(
    const AgentIdentity& agent) {
  using Desired = std::vector<DesiredRank>;
  const auto read = [&](Transaction& transaction) -> absl::StatusOr<Desired> {
    const pqxx::row session = transaction.Run(kNowInSession, Params(agent.node, agent.session))[0];
    if (!agent.session.empty() && !session["holds"].as<bool>()) {
      return LeaseIsOver(agent.node, agent.session);
    }
    std::map<std::string, JobRecord> jobs;
    std::map<std::string, std::string> unix_users;
    std::vector<std::string> uids;
    for (const pqxx::row& row : transaction.Run(kDesiredJobs, Params(agent.node))) {
      JobRecord job = JobOf(row);
      uids.push_back(job.uid);
      unix_users[job.uid] = row["unix_user"].as<std::string>();
      jobs[job.uid] = std::move(job);
    }
    Desired desired;
    if (uids.empty()) return desired;
    const std::vector<AttemptRecord> attempts =
        AttemptsOf(transaction.Run(kDesiredAttempts, Params(uids)));
    std::map<std::string, std::string> addresses;
    for (const AttemptRecord& attempt : attempts) {
      for (const RankRecord& rank : attempt.ranks) addresses[rank.node];
    }
    std::vector<std::string> hosts;
    for (const auto& [host, address] : addresses) hosts.push_back(host);
    for (const pqxx::row& row : transaction.Run(kNodeAddresses, Params(hosts))) {
      addresses[row[0].as<std::string>()] = row[1].as<std::string>();
    }
    const absl::Time now = absl::FromUnixMicros(session["now"].as<int64_t>());
    for (const AttemptRecord& attempt : attempts) {
      const JobRecord& job = jobs.at(attempt.job_uid);
      for (const RankRecord& rank : attempt.ranks) {
        if (rank.node != agent.node || !HasClaim(agent, rank.claim)) continue;
        const DesiredRankState wish = DesiredStateOf(job, attempt, rank, now);
        if (wish == DesiredRankState::kStop) continue;
        DesiredRank& one = desired.emplace_back();
        one.rank = rank;
        one.job = job;
        one.attempt = attempt;
        one.suspend = wish == DesiredRankState::kSuspend;
        one.suspend_deadline = job.suspend_deadline;
        one.unix_user = unix_users[job.uid];
        for (const RankRecord& peer : attempt.ranks) one.addresses.push_back(addresses[peer.node]);
      }
    }
    return desired;
  };
  return agents_.Run("read desired set", read, Access::kSnapshot);
}

absl::StatusOr<AppendResult> PostgresFleetStore::AppendEvents(const RankEvents& report) {
  const RankId& id = report.rank;
  const std::vector<RankEventRecord>& events = report.events;
  return agents_.Run(
      "append events", [&](Transaction& transaction) -> absl::StatusOr<AppendResult> {
        AppendResult result;
        result.fenced = true;
        const std::optional<JobRecord> job = LockJob(transaction, id.job_uid);
        if (!job.has_value() || job->attempt != id.attempt) return result;
        const std::optional<AttemptRecord> attempt =
            ReadAttempt(transaction, id.job_uid, id.attempt);
        if (!attempt.has_value() || id.rank < 0 ||
            id.rank >= static_cast<int>(attempt->ranks.size())) {
          return result;
        }
        const RankRecord& rank = attempt->ranks[id.rank];
        result.nodes = NodesOf(*attempt);
        result.acked_sequence = rank.acked_sequence;
        if (!MayReport(report, rank)) return result;
        if (transaction.repeated_in_doubt &&
            Stored(rank, events)) {  // by the try whose answer was lost
          result.fenced = false;
          result.job_changed = true;
          return result;
        }
        if (IsOver(rank.state)) {
          result.session_over = LostWithSession(transaction, report.agent, rank);
          return result;
        }

        TY_ASSIGN_OR_RETURN(const SeriesPoints series,
                            ReadSeriesOf(transaction, id.job_uid, events));
        const InSeries in_series = [&series](int64_t step, MetricSplit split) {
          return series.count({step, split}) > 0;
        };
        TY_ASSIGN_OR_RETURN(AttemptChange change, TakeEvents(*job, *attempt, id.rank, events,
                                                             in_series, Now(transaction)));
        result.fenced = false;
        const int64_t acked = change.attempt.ranks[id.rank].acked_sequence;
        if (acked == rank.acked_sequence) return result;
        TY_ASSIGN_OR_RETURN(const int64_t first_sequence,
                            WriteAttempt(transaction, *job, *attempt, change));
        result.items = NumberedItems(first_sequence, std::move(change.change.feed));
        result.items_known = true;
        result.acked_sequence = acked;
        result.job_changed |= change.change.changed || change.wishes_changed;
        return result;
      });
}

std::vector<absl::StatusOr<AppendResult>> PostgresFleetStore::AppendGroup(
    const std::vector<RankEvents>& group) {
  using Answers = std::vector<absl::StatusOr<AppendResult>>;
  if (group.size() < 2) return FleetStore::AppendGroup(group);
  absl::StatusOr<Answers> answers = agents_.Run(
      "append events of many",
      [&](Transaction& transaction) { return EventGroup(transaction, group).Append(); });
  if (answers.ok()) return *std::move(answers);
  if (absl::IsUnavailable(answers.status())) return Answers(group.size(), answers.status());
  // An entry that the database refuses must not make the others fail.
  return FleetStore::AppendGroup(group);
}

absl::StatusOr<bool> PostgresFleetStore::ReportAbsent(const AgentIdentity& agent,
                                                      const std::vector<RankId>& ranks) {
  const std::map<std::string, std::vector<RankId>> by_job = ByJob(ranks);
  if (by_job.empty()) return false;
  return agents_.Run("report absent", [&](Transaction& transaction) -> absl::StatusOr<bool> {
    bool any = transaction.repeated_in_doubt, any_proven = false;
    for (const auto& [uid, of_job] : by_job) {
      const RanksOfJob locked = LockRanks(transaction, uid);
      std::vector<RankId> lost;
      for (const pqxx::row& row : transaction.Run(kLostRanksOfJob, Params(uid, agent.node))) {
        const RankId id = RankIdOf(row);
        if (std::find(of_job.begin(), of_job.end(), id) != of_job.end() &&
            CanProveGone(agent, ClaimOf(row))) {
          lost.push_back(id);
        }
      }
      if (!lost.empty()) {
        TY_ASSIGN_OR_RETURN(const int proven, ProveLostGone(transaction, agent.node, locked, lost));
        any |= proven > 0;
        any_proven |= proven > 0;
        continue;  // the others of this job are left to the next report: it may have ended
      }
      TY_ASSIGN_OR_RETURN(const bool dropped, DropAbsent(transaction, agent, locked, of_job));
      any |= dropped;
    }
    if (any_proven) transaction.Run(kTouchNode, Params(agent.node));
    return any;
  });
}

absl::StatusOr<int> PostgresFleetStore::ConfirmEmpty(const std::string& node) {
  return database_.Run("confirm empty", [&](Transaction& transaction) -> absl::StatusOr<int> {
    if (transaction.Run(kReadNode, Params(node)).empty()) {
      return absl::NotFoundError(absl::StrCat("nodes/", node, " never registered"));
    }
    std::vector<RankId> lost;
    for (const pqxx::row& row : transaction.Run(kLostRanksOn, Params(node))) {
      lost.push_back(RankIdOf(row));
    }
    int confirmed = 0;
    for (const auto& [uid, of_job] : ByJob(lost)) {
      TY_ASSIGN_OR_RETURN(const int proven,
                          ProveLostGone(transaction, node, LockRanks(transaction, uid), of_job));
      confirmed += proven;
    }
    if (confirmed > 0) transaction.Run(kTouchNode, Params(node));
    return confirmed;
  });
}

absl::StatusOr<std::vector<LeftState>> PostgresFleetStore::FindUnneeded(
    const std::vector<LeftState>& states) {
  std::vector<std::string> uids;
  for (const LeftState& state : states) uids.push_back(state.job_uid);
  const auto find = [&](Transaction& transaction) -> absl::StatusOr<std::vector<LeftState>> {
    std::map<std::string, JobRecord> jobs;  // an ended one needs nothing
    for (const pqxx::row& row : transaction.Run(kLiveJobs, Params(uids))) {
      JobRecord job = JobOf(row);
      jobs[job.uid] = std::move(job);
    }
    std::vector<LeftState> unneeded;
    for (const LeftState& state : states) {
      const auto found = jobs.find(state.job_uid);
      const bool needed = found != jobs.end() && MayNeedState(found->second, state.attempt);
      if (!needed) unneeded.push_back(state);
    }
    return unneeded;
  };
  return agents_.Run("find unneeded states", find, Access::kSnapshot);
}

absl::StatusOr<NodeRanks> PostgresFleetStore::ReadRanks(const std::string& node) {
  const auto read = [&](Transaction& transaction) -> absl::StatusOr<NodeRanks> {
    NodeRanks read;
    DesiredStateKey wishes;
    for (const pqxx::row& row : transaction.Run(kRanksOfNode, Params(node))) {
      const RankId id = read.ranks.emplace_back(HeldRank{RankIdOf(row), ClaimOf(row)}).id;
      if (row["version"].is_null()) continue;  // the job has a newer attempt, or ended
      if (IsOver(ParseRankState(row["rank_state"].as<std::string>()).value_or(RankState::kGone))) {
        continue;
      }
      wishes.Add(id, row["world_size"].as<int>(),
                 ParseJobState(row["state"].as<std::string>()).value_or(JobState::kFailed),
                 ParseRankOutcome(row["outcome"].as<std::string>()).value_or(RankOutcome::kNone),
                 row["version"].as<int64_t>());
    }
    read.wishes = wishes.Text();
    return read;
  };
  return agents_.Run("read ranks", read, Access::kStatements);
}

absl::StatusOr<std::vector<NodeRecord>> PostgresFleetStore::ListNodes() {
  using Nodes = std::vector<NodeRecord>;
  return database_.Run("list nodes", [&](Transaction& transaction) -> absl::StatusOr<Nodes> {
    return AllNodesOf(transaction.Run(kListNodes, Params()));
  });
}

absl::Status PostgresFleetStore::SetLeaving(const AgentIdentity& agent, absl::Duration grace) {
  return agents_.Run("leave", [&](Transaction& transaction) -> absl::Status {
    const pqxx::result left =
        transaction.Run(kSetLeaving, Params(agent.node, agent.session, grace));
    return left.empty() ? LeaseIsOver(agent.node, agent.session) : absl::OkStatus();
  });
}

absl::StatusOr<NodeRecord> PostgresFleetStore::SetDraining(const std::string& node, bool draining) {
  return database_.Run("drain node", [&](Transaction& transaction) -> absl::StatusOr<NodeRecord> {
    if (transaction.Run(kSetDraining, Params(node, draining)).empty()) {
      return absl::NotFoundError(absl::StrCat("nodes/", node, " never registered"));
    }
    return NodeOf(transaction.Run(kReadNode, Params(node))[0]);
  });
}

namespace {

// The attempt that somebody asked for, if it is there.
struct SoughtAttempt {
  JobRecord job;  // its id and newest attempt alone
  int64_t number = 0;
  std::optional<AttemptRecord> found;
  const AttemptRecord* get() const { return found.has_value() ? &*found : nullptr; }
};

absl::StatusOr<SoughtAttempt> SeekAttempt(Transaction& transaction, const std::string& job_uid,
                                          int64_t attempt) {
  const pqxx::result rows = transaction.Run(kJobExists, Params(job_uid));
  if (rows.empty()) {
    return absl::NotFoundError(absl::StrCat("the job with uid ", job_uid, " does not exist"));
  }
  SoughtAttempt sought;
  sought.job.job_id = rows[0]["job_id"].as<std::string>();
  sought.job.attempt = rows[0]["attempt"].as<int64_t>();
  sought.number = attempt == 0 ? sought.job.attempt : attempt;
  sought.found = ReadAttempt(transaction, job_uid, sought.number);
  return sought;
}

}  // namespace

absl::StatusOr<AttemptRecord> PostgresFleetStore::FindAttempt(const std::string& job_uid,
                                                              int64_t attempt) {
  using Found = absl::StatusOr<AttemptRecord>;
  return database_.Run("find attempt", [&](Transaction& transaction) -> Found {
    TY_ASSIGN_OR_RETURN(const SoughtAttempt sought, SeekAttempt(transaction, job_uid, attempt));
    return PickAttempt(sought.job, sought.number, sought.get());
  });
}

absl::StatusOr<RankRecord> PostgresFleetStore::FindRank(const std::string& job_uid, int64_t attempt,
                                                        int rank) {
  return database_.Run("find rank", [&](Transaction& transaction) -> absl::StatusOr<RankRecord> {
    TY_ASSIGN_OR_RETURN(const SoughtAttempt sought, SeekAttempt(transaction, job_uid, attempt));
    return PickRank(sought.job, sought.number, sought.get(), rank);
  });
}

absl::StatusOr<std::vector<AttemptRecord>> PostgresFleetStore::ListAttempts(
    const std::string& job_uid) {
  using Attempts = std::vector<AttemptRecord>;
  return database_.Run("list attempts", [&](Transaction& transaction) -> absl::StatusOr<Attempts> {
    Attempts attempts = AttemptsOf(transaction.Run(kReadAttempts, Params(job_uid, int64_t{0})));
    if (attempts.empty()) TY_RETURN_IF_ERROR(RequireJob(transaction, job_uid));
    return attempts;
  });
}

}  // namespace trainyard::postgres
