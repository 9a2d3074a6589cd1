#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {
namespace {

absl::Status NoSuchNode(const std::string& node) {
  return absl::NotFoundError(absl::StrCat("nodes/", node, " never registered"));
}

}  // namespace

AttemptRecord* MemoryStores::NewestAttempt(JobEntry& entry, int64_t attempt) {
  if (entry.job.attempt != attempt) return nullptr;
  const auto found = entry.attempts.find(attempt);
  return found == entry.attempts.end() ? nullptr : &found->second;
}

void MemoryStores::NoteFailures(const std::vector<FailureOnNode>& failures) {
  for (const FailureOnNode& one : failures) {
    const auto node = nodes_.find(one.node);
    if (node == nodes_.end()) continue;
    std::vector<NodeFailure>& kept = node->second.failures;
    const bool known = std::any_of(kept.begin(), kept.end(), [&](const NodeFailure& failure) {
      return failure.job_uid == one.failure.job_uid && failure.attempt == one.failure.attempt;
    });
    if (!known) kept.push_back(one.failure);
    node_changed_[one.node] = ++writes_;
    std::erase_if(kept, [now = Now()](const NodeFailure& failure) {
      return failure.time <= now - kFailuresKept;
    });
    if (kept.size() > kMostFailuresKept) kept.erase(kept.begin());
  }
}

SharedItems MemoryStores::Write(JobEntry& entry, const AttemptChange& change) {
  NoteFailures(NewFailures(change.change.job, entry.attempts.at(change.attempt.attempt),
                           change.attempt, change.time));
  SharedItems added = Write(entry, change.change);
  for (const RankRecord& rank :
       RejoinedRanks(entry.attempts.at(change.attempt.attempt), change.attempt)) {
    NoteRejoined(rank);
  }
  entry.attempts[change.attempt.attempt] = change.attempt;
  for (const RankRecord& rank : change.attempt.ranks) {
    if (!IsOver(rank.state)) continue;
    for (const int slot : rank.slots) {
      const auto held = held_slots_.find({rank.node, slot});
      if (held != held_slots_.end() && held->second == rank.id) held_slots_.erase(held);
    }
  }
  for (const RankRecord& rank : change.attempt.ranks) {
    if (rank.state == RankState::kLost) NoteLost(rank);
  }
  for (const CheckpointWritten& written : change.checkpoints) {
    entry.checkpoints[written.checkpoint.step] = written.checkpoint;
    std::erase_if(entry.checkpoints, [&written](const auto& kept) {
      return std::count(written.removed_uris.begin(), written.removed_uris.end(), kept.second.uri) >
             0;
    });
  }
  return added;
}

void MemoryStores::NoteLost(const RankRecord& rank) {
  const auto node = nodes_.find(rank.node);
  if (node == nodes_.end()) return;
  std::vector<LostRank>& lost = node->second.lost_ranks;
  const bool known =
      std::any_of(lost.begin(), lost.end(), [&](const LostRank& one) { return one.id == rank.id; });
  if (known) return;
  lost.push_back({.id = rank.id, .claim = rank.claim, .slots = rank.slots, .time = rank.gone_time});
  std::sort(lost.begin(), lost.end(),
            [](const LostRank& a, const LostRank& b) { return a.id < b.id; });
  node_changed_[rank.node] = ++writes_;
}

void MemoryStores::NoteRejoined(const RankRecord& rank) {
  NodeRecord& node = nodes_.at(rank.node);
  std::erase_if(node.lost_ranks, [&rank](const LostRank& lost) { return lost.id == rank.id; });
  std::erase_if(node.failures, [&rank](const NodeFailure& failure) {
    return failure.job_uid == rank.id.job_uid && failure.attempt == rank.id.attempt &&
           failure.category == "LOST";
  });
  for (const int slot : rank.slots) held_slots_[{rank.node, slot}] = rank.id;
  node_changed_[rank.node] = ++writes_;
}

bool MemoryStores::InSession(const AgentIdentity& agent) {
  if (agent.session.empty()) return true;
  const auto node = nodes_.find(agent.node);
  return node != nodes_.end() && node->second.reachable &&
         node->second.incarnation == agent.session;
}

bool MemoryStores::AnyLost(const JobEntry& entry) {
  const AttemptRecord* newest = entry.attempts.empty() ? nullptr : &entry.attempts.rbegin()->second;
  return newest != nullptr && (AnyLostBefore(entry) || trainyard::AnyLost(*newest));
}

// Whether a rank of an attempt before the newest is LOST.
bool MemoryStores::AnyLostBefore(const JobEntry& entry) {
  return std::any_of(entry.attempts.begin(), entry.attempts.end(), [&](const auto& numbered) {
    return numbered.first < entry.job.attempt && trainyard::AnyLost(numbered.second);
  });
}

int MemoryStores::ProveLostGone(const std::string& node, const std::set<RankId>& ranks) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return 0;
  std::set<std::string> touched;  // jobs
  std::vector<LostRank> left;
  int proven = 0;
  for (LostRank& lost : found->second.lost_ranks) {
    if (ranks.count(lost.id) == 0) {
      left.push_back(std::move(lost));
      continue;
    }
    ++proven;
    const auto entry = by_uid_.find(lost.id.job_uid);
    if (entry == by_uid_.end()) continue;  // deleted
    const auto attempt = entry->second.attempts.find(lost.id.attempt);
    if (attempt == entry->second.attempts.end()) continue;
    attempt->second.ranks[lost.id.rank].state = RankState::kGone;
    entry->second.changed = ++writes_;
    touched.insert(lost.id.job_uid);
  }
  found->second.lost_ranks = std::move(left);
  if (proven == 0) return 0;
  node_changed_[node] = ++writes_;
  for (const std::string& uid : touched) {
    JobEntry& entry = by_uid_.at(uid);
    AttemptRecord& newest = entry.attempts.at(entry.job.attempt);
    newest.lost_before = AnyLostBefore(entry);
    if (!AnyLost(entry)) Write(entry, EndCancelled(entry.job, newest, Now()));
  }
  return proven;
}

absl::StatusOr<NodeRecord> MemoryStores::RegisterNode(const NodeRecord& node,
                                                      absl::Duration lease) {
  TY_RETURN_IF_ERROR(Available());
  TY_RETURN_IF_ERROR(CheckNode(node));
  absl::MutexLock lock(&mu_);
  if (node.key_fingerprint.empty()) {
    const NodeKey* const holder = KeyOfName(node.name);
    TY_RETURN_IF_ERROR(
        CheckNameHasNoKey(holder == nullptr ? std::nullopt : std::optional(*holder)));
  } else {
    const auto key = node_keys_.find(node.key_fingerprint);
    if (key == node_keys_.end()) return absl::UnauthenticatedError("nobody joined with this key");
    TY_RETURN_IF_ERROR(CheckNotRevoked(key->second));
  }
  NodeRecord made = node;
  made.key_fingerprint.clear();
  made.reachable = true;
  made.lease_end = ToMicroseconds(Now() + lease);
  made.create_time = Now();
  const auto request = node_requests_.find(node.name);
  const bool given_up =
      request != node_requests_.end() && (request->second.state == NodeRequestState::kReleasing ||
                                          request->second.state == NodeRequestState::kEnded);
  made.draining = given_up;
  made.leave_time = absl::InfiniteFuture();
  made.report = {};
  made.failures.clear();
  made.found.clear();
  made.running.clear();
  made.lost_ranks.clear();
  made.cordon.clear();
  made.lifted_time = made.boot_time = absl::InfinitePast();
  made.beat = 1;
  if (const auto earlier = nodes_.find(node.name); earlier != nodes_.end()) {
    std::vector<RankId> alive;
    for (const auto& [slot, rank] : held_slots_) {
      if (slot.first == node.name) alive.push_back(rank);
    }
    TY_RETURN_IF_ERROR(CheckNameIsFree(earlier->second, alive, node));
    made.beat = earlier->second.beat + 1;
    made.draining = earlier->second.draining || given_up;
    made.create_time = earlier->second.create_time;
    made.failures = earlier->second.failures;
    made.lost_ranks = earlier->second.lost_ranks;
    made.lifted_time = earlier->second.lifted_time;
    const bool same_boot = earlier->second.instance == node.instance;
    made.boot_time = same_boot ? earlier->second.boot_time : Now();
    if (same_boot) made.cordon = earlier->second.cordon;
  }
  node_changed_[node.name] = ++writes_;
  TakeOverClaims(node);
  nodes_[node.name] = std::move(made);
  std::vector<RunningRank> rejoined = RejoinOn(node);
  NodeRecord answer = nodes_[node.name];
  answer.running = std::move(rejoined);
  return answer;
}

std::vector<RunningRank> MemoryStores::RejoinOn(const NodeRecord& node) {
  const AgentIdentity agent(node.name, node.uid, node.instance);
  std::vector<RunningRank> rejoined;
  for (auto& [uid, entry] : by_uid_) {
    const AttemptRecord* const attempt = NewestAttempt(entry, entry.job.attempt);
    if (attempt == nullptr || !MayRejoin(entry.job, *attempt, agent, node.running)) continue;
    for (const RankRecord& rank : attempt->ranks) rejoined.push_back({rank.id, rank.claim.token});
    Write(entry, RejoinRanks(entry.job, *attempt, Now()));
  }
  return rejoined;
}

void MemoryStores::TakeOverClaims(const NodeRecord& node) {
  if (node.uid.empty()) return;
  for (auto& [uid, entry] : by_uid_) {
    AttemptRecord* attempt = NewestAttempt(entry, entry.job.attempt);
    if (attempt == nullptr) continue;
    for (RankRecord& rank : attempt->ranks) {
      if (rank.node != node.name || IsOver(rank.state) || !rank.claim.node_uid.empty()) continue;
      rank.claim.node_uid = node.uid;
      rank.claim.instance = node.instance;
      entry.changed = ++writes_;
    }
  }
}

std::vector<absl::Status> MemoryStores::RenewLeases(const std::vector<LeaseRenewal>& renewals) {
  const absl::Status available = Available();
  if (!available.ok()) return std::vector<absl::Status>(renewals.size(), available);
  absl::MutexLock lock(&mu_);
  std::vector<absl::Status> answers;
  for (const LeaseRenewal& renewal : renewals) {
    const auto found = nodes_.find(renewal.node);
    if (found == nodes_.end() || found->second.incarnation != renewal.incarnation ||
        !found->second.reachable) {
      answers.push_back(LeaseIsOver(renewal.node, renewal.incarnation));
      continue;
    }
    NodeRecord& node = found->second;
    ++renewals_;
    ++node.beat;
    node.lease_end = std::max(node.lease_end, ToMicroseconds(Now() + renewal.lease));
    node.report = renewal.report;
    answers.push_back(absl::OkStatus());
  }
  return answers;
}

absl::StatusOr<std::vector<DesiredRank>> MemoryStores::ReadDesired(const AgentIdentity& agent) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  if (!InSession(agent)) return LeaseIsOver(agent.node, agent.session);
  const absl::Time now = Now();
  std::vector<DesiredRank> desired;
  for (auto& [uid, entry] : by_uid_) {
    const AttemptRecord* attempt = NewestAttempt(entry, entry.job.attempt);
    if (attempt == nullptr) continue;
    for (const RankRecord& rank : attempt->ranks) {
      if (rank.node != agent.node || !HasClaim(agent, rank.claim)) continue;
      const DesiredRankState wish = DesiredStateOf(entry.job, *attempt, rank, now);
      if (wish == DesiredRankState::kStop) continue;
      DesiredRank one{.rank = rank, .job = entry.job, .attempt = *attempt};
      one.suspend = wish == DesiredRankState::kSuspend;
      one.suspend_deadline = entry.job.suspend_deadline;
      const auto project = projects_.find(entry.job.project);
      if (project != projects_.end()) one.unix_user = project->second.unix_user;
      for (const RankRecord& peer : attempt->ranks) {
        const auto host = nodes_.find(peer.node);
        one.addresses.push_back(host == nodes_.end() ? "" : host->second.address);
      }
      desired.push_back(std::move(one));
    }
  }
  return desired;
}

absl::StatusOr<AppendResult> MemoryStores::AppendEvents(const RankEvents& report) {
  const RankId& id = report.rank;
  const std::vector<RankEventRecord>& events = report.events;
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  AppendResult result;
  result.fenced = true;
  const auto found = by_uid_.find(id.job_uid);
  if (found == by_uid_.end()) return result;
  JobEntry& entry = found->second;
  const AttemptRecord* attempt = NewestAttempt(entry, id.attempt);
  if (attempt == nullptr || id.rank < 0 || id.rank >= static_cast<int>(attempt->ranks.size())) {
    return result;
  }
  const RankRecord& rank = attempt->ranks[id.rank];
  result.acked_sequence = rank.acked_sequence;
  if (!MayReport(report, rank)) return result;
  if (IsOver(rank.state)) {
    result.session_over = rank.state == RankState::kLost && !InSession(report.agent);
    return result;
  }

  const InSeries in_series = [this, &entry](int64_t step, MetricSplit split) {
    return std::any_of(entry.feed.begin(), entry.feed.end(), [&](const FeedRecord& item) {
      const auto* point = std::get_if<MetricRecord>(&item.what);
      return point != nullptr && point->step == step && point->split == split &&
             !Superseded(entry, item.attempt, step);
    });
  };
  TY_ASSIGN_OR_RETURN(const AttemptChange change,
                      TakeEvents(entry.job, *attempt, id.rank, events, in_series, Now()));
  result.items = Write(entry, change);
  result.fenced = false;
  const int64_t acked = change.attempt.ranks[id.rank].acked_sequence;
  result.items_known = acked != result.acked_sequence;
  result.acked_sequence = acked;
  result.job_changed = change.change.changed || change.wishes_changed;
  result.nodes = NodesOf(*attempt);
  return result;
}

int MemoryStores::DropRanksOf(const AgentIdentity& agent, const std::set<RankId>* only,
                              RankOutcome outcome) {
  const absl::Time now = Now();
  int jobs = 0;
  for (auto& [uid, entry] : by_uid_) {
    const AttemptRecord* attempt = NewestAttempt(entry, entry.job.attempt);
    if (attempt == nullptr) continue;
    std::vector<int> gone;
    for (const RankRecord& rank : attempt->ranks) {
      if (rank.node != agent.node || IsOver(rank.state)) continue;
      const bool absent = only != nullptr && only->count(rank.id) > 0 &&
                          CanProveGone(agent, rank.claim) &&
                          DesiredStateOf(entry.job, *attempt, rank, now) == DesiredRankState::kStop;
      if (only == nullptr || absent) gone.push_back(rank.id.rank);
    }
    if (gone.empty()) continue;
    Write(entry, DropRanks(entry.job, *attempt, gone, outcome, now));
    ++jobs;
  }
  return jobs;
}

absl::StatusOr<bool> MemoryStores::ReportAbsent(const AgentIdentity& agent,
                                                const std::vector<RankId>& ranks) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  const std::set<RankId> only(ranks.begin(), ranks.end());
  std::set<RankId> lost;
  if (const auto node = nodes_.find(agent.node); node != nodes_.end()) {
    for (const LostRank& rank : node->second.lost_ranks) {
      if (only.count(rank.id) > 0 && CanProveGone(agent, rank.claim)) lost.insert(rank.id);
    }
  }
  const int proven = ProveLostGone(agent.node, lost);
  return DropRanksOf(agent, &only, RankOutcome::kKilled) + proven > 0;
}

absl::StatusOr<int> MemoryStores::ConfirmEmpty(const std::string& node) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return NoSuchNode(node);
  std::set<RankId> lost;
  for (const LostRank& rank : found->second.lost_ranks) lost.insert(rank.id);
  return ProveLostGone(node, lost);
}

absl::StatusOr<std::vector<LeftState>> MemoryStores::FindUnneeded(
    const std::vector<LeftState>& states) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  std::vector<LeftState> unneeded;
  for (const LeftState& state : states) {
    const auto found = by_uid_.find(state.job_uid);
    const bool needed = found != by_uid_.end() && MayNeedState(found->second.job, state.attempt);
    if (!needed) unneeded.push_back(state);
  }
  return unneeded;
}

absl::StatusOr<NodeRanks> MemoryStores::ReadRanks(const std::string& node) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  NodeRanks read;
  DesiredStateKey wishes;
  for (auto& [uid, entry] : by_uid_) {
    const AttemptRecord* attempt = NewestAttempt(entry, entry.job.attempt);
    if (attempt == nullptr) continue;
    for (const RankRecord& rank : attempt->ranks) {
      if (rank.node != node || IsOver(rank.state)) continue;
      read.ranks.push_back({rank.id, rank.claim});
      wishes.Add(rank.id, attempt->world_size, entry.job.state, rank.outcome, entry.job.version);
    }
  }
  read.wishes = wishes.Text();
  if (const auto found = nodes_.find(node); found != nodes_.end()) {
    for (const LostRank& lost : found->second.lost_ranks)
      read.ranks.push_back({lost.id, lost.claim});
    std::sort(read.ranks.begin(), read.ranks.end(),
              [](const HeldRank& a, const HeldRank& b) { return a.id < b.id; });
  }
  return read;
}

absl::StatusOr<std::vector<NodeRecord>> MemoryStores::ListNodes() {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  std::vector<NodeRecord> nodes;
  for (const auto& [name, node] : nodes_) nodes.push_back(node);
  return nodes;
}

absl::Status MemoryStores::SetLeaving(const AgentIdentity& agent, absl::Duration grace) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  if (agent.session.empty() || !InSession(agent)) return LeaseIsOver(agent.node, agent.session);
  nodes_[agent.node].leave_time = ToMicroseconds(Now() + grace);
  node_changed_[agent.node] = ++writes_;
  return absl::OkStatus();
}

absl::StatusOr<NodeRecord> MemoryStores::SetDraining(const std::string& node, bool draining) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return NoSuchNode(node);
  found->second.draining = draining;
  if (!draining && !found->second.cordon.empty()) {
    found->second.cordon.clear();
    found->second.lifted_time = Now();
  }
  node_changed_[node] = ++writes_;
  return found->second;
}

absl::StatusOr<RankRecord> MemoryStores::FindRank(const std::string& job_uid, int64_t attempt,
                                                  int rank) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, FindUid(job_uid));
  const int64_t number = attempt == 0 ? entry->job.attempt : attempt;
  const auto found = entry->attempts.find(number);
  return PickRank(entry->job, number, found == entry->attempts.end() ? nullptr : &found->second,
                  rank);
}

absl::StatusOr<AttemptRecord> MemoryStores::FindAttempt(const std::string& job_uid,
                                                        int64_t attempt) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, FindUid(job_uid));
  const int64_t number = attempt == 0 ? entry->job.attempt : attempt;
  const auto found = entry->attempts.find(number);
  return PickAttempt(entry->job, number, found == entry->attempts.end() ? nullptr : &found->second);
}

absl::StatusOr<std::vector<AttemptRecord>> MemoryStores::ListAttempts(const std::string& job_uid) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, FindUid(job_uid));
  std::vector<AttemptRecord> attempts;
  for (const auto& [number, attempt] : entry->attempts) attempts.push_back(attempt);
  return attempts;
}

}  // namespace trainyard
