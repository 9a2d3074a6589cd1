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

void MemoryStores::Write(JobEntry& entry, const AttemptChange& change) {
  NoteFailures(NewFailures(change.change.job, entry.attempts.at(change.attempt.attempt),
                           change.attempt, change.time));
  Write(entry, change.change);
  entry.attempts[change.attempt.attempt] = change.attempt;
  for (const RankRecord& rank : change.attempt.ranks) {
    if (rank.state != RankState::kGone) continue;
    for (const int slot : rank.slots) {
      const auto held = held_slots_.find({rank.node, slot});
      if (held != held_slots_.end() && held->second == rank.id) held_slots_.erase(held);
    }
  }
  for (const CheckpointWritten& written : change.checkpoints) {
    entry.checkpoints[written.checkpoint.step] = written.checkpoint;
    std::erase_if(entry.checkpoints, [&written](const auto& kept) {
      return std::count(written.removed_uris.begin(), written.removed_uris.end(), kept.second.uri) >
             0;
    });
  }
}

absl::StatusOr<NodeRecord> MemoryStores::RegisterNode(const NodeRecord& node,
                                                      absl::Duration lease) {
  TY_RETURN_IF_ERROR(Available());
  TY_RETURN_IF_ERROR(CheckNode(node));
  absl::MutexLock lock(&mu_);
  NodeRecord made = node;
  made.reachable = true;
  made.lease_end = ToMicroseconds(Now() + lease);
  made.create_time = Now();
  made.draining = false;
  made.report = {};
  made.failures.clear();
  made.cordon.clear();
  made.lifted_time = made.boot_time = absl::InfinitePast();
  made.beat = 1;
  if (const auto earlier = nodes_.find(node.name); earlier != nodes_.end()) {
    TY_RETURN_IF_ERROR(CheckNameIsFree(earlier->second, node));
    made.beat = earlier->second.beat + 1;
    made.draining = earlier->second.draining;
    made.create_time = earlier->second.create_time;
    made.failures = earlier->second.failures;
    made.lifted_time = earlier->second.lifted_time;
    const bool same_boot = earlier->second.instance == node.instance;
    made.boot_time = same_boot ? earlier->second.boot_time : Now();
    if (same_boot) made.cordon = earlier->second.cordon;
  }
  node_changed_[node.name] = ++writes_;
  return nodes_[node.name] = made;
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
      answers.push_back(absl::AbortedError(
          absl::StrCat("the lease of ", renewal.node, " under incarnation ", renewal.incarnation,
                       " is over: stop all work and register again")));
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

absl::StatusOr<std::vector<DesiredRank>> MemoryStores::ReadDesired(const std::string& node) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  const absl::Time now = Now();
  std::vector<DesiredRank> desired;
  for (auto& [uid, entry] : by_uid_) {
    const AttemptRecord* attempt = NewestAttempt(entry, entry.job.attempt);
    if (attempt == nullptr) continue;
    for (const RankRecord& rank : attempt->ranks) {
      if (rank.node != node) continue;
      const RankWish wish = WishFor(entry.job, *attempt, rank, now);
      if (wish == RankWish::kStop) continue;
      DesiredRank one{.rank = rank, .job = entry.job, .attempt = *attempt};
      one.suspend = wish == RankWish::kSuspend;
      one.suspend_deadline = entry.job.suspend_deadline;
      for (const RankRecord& peer : attempt->ranks) {
        const auto host = nodes_.find(peer.node);
        one.addresses.push_back(host == nodes_.end() ? "" : host->second.address);
      }
      desired.push_back(std::move(one));
    }
  }
  return desired;
}

absl::StatusOr<AppendResult> MemoryStores::AppendEvents(
    const std::string& node, const RankId& id, const std::vector<RankEventRecord>& events) {
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
  if (rank.node != node || rank.state == RankState::kGone) return result;

  const InSeries in_series = [this, &entry](int64_t step, MetricSplit split) {
    return std::any_of(entry.feed.begin(), entry.feed.end(), [&](const FeedRecord& item) {
      const auto* point = std::get_if<MetricRecord>(&item.what);
      return point != nullptr && point->step == step && point->split == split &&
             !Superseded(entry, item.attempt, step);
    });
  };
  TY_ASSIGN_OR_RETURN(const AttemptChange change,
                      TakeEvents(entry.job, *attempt, id.rank, events, in_series, Now()));
  Write(entry, change);
  result.fenced = false;
  result.acked_sequence = change.attempt.ranks[id.rank].acked_sequence;
  result.job_changed = change.change.changed || change.wishes_changed;
  result.nodes = NodesOf(*attempt);
  return result;
}

int MemoryStores::DropRanksOf(const std::string& node, const std::set<RankId>* only,
                              RankOutcome outcome) {
  const absl::Time now = Now();
  int jobs = 0;
  for (auto& [uid, entry] : by_uid_) {
    const AttemptRecord* attempt = NewestAttempt(entry, entry.job.attempt);
    if (attempt == nullptr) continue;
    std::vector<int> gone;
    for (const RankRecord& rank : attempt->ranks) {
      if (rank.node != node || rank.state == RankState::kGone) continue;
      const bool absent = only != nullptr && only->count(rank.id) > 0 &&
                          WishFor(entry.job, *attempt, rank, now) == RankWish::kStop;
      if (only == nullptr || absent) gone.push_back(rank.id.rank);
    }
    if (gone.empty()) continue;
    Write(entry, DropRanks(entry.job, *attempt, gone, outcome, now));
    ++jobs;
  }
  return jobs;
}

absl::StatusOr<bool> MemoryStores::ReportAbsent(const std::string& node,
                                                const std::vector<RankId>& ranks) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  const std::set<RankId> only(ranks.begin(), ranks.end());
  return DropRanksOf(node, &only, RankOutcome::kKilled) > 0;
}

absl::StatusOr<NodeRanks> MemoryStores::ReadRanks(const std::string& node) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  NodeRanks read;
  WishText wishes;
  for (auto& [uid, entry] : by_uid_) {
    const AttemptRecord* attempt = NewestAttempt(entry, entry.job.attempt);
    if (attempt == nullptr) continue;
    for (const RankRecord& rank : attempt->ranks) {
      if (rank.node != node || rank.state == RankState::kGone) continue;
      read.ranks.push_back(rank.id);
      wishes.Add(rank.id, attempt->world_size, entry.job.state, rank.outcome, entry.job.version);
    }
  }
  read.wishes = wishes.Text();
  return read;
}

absl::StatusOr<std::vector<NodeRecord>> MemoryStores::ListNodes() {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  std::vector<NodeRecord> nodes;
  for (const auto& [name, node] : nodes_) nodes.push_back(node);
  return nodes;
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

absl::StatusOr<std::vector<AttemptRecord>> MemoryStores::ListAttempts(const std::string& job_uid) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_ASSIGN_OR_RETURN(JobEntry* const entry, FindUid(job_uid));
  std::vector<AttemptRecord> attempts;
  for (const auto& [number, attempt] : entry->attempts) attempts.push_back(attempt);
  return attempts;
}

}  // namespace trainyard
